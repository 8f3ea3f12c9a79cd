package configs

import _ "embed"

// TransformersSFT is the script that trains a benchmark's batches with transformers and torch.
//
//go:embed peers/transformers_sft.py
var TransformersSFT string
