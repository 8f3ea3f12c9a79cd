package configs

import _ "embed"

// TransformersSFT is the script that trains a benchmark's batches with transformers and torch.
//
//go:embed peers/transformers_sft.py
var TransformersSFT string

// TransformersCUDA is the script that runs the workloads of a GPU benchmark with transformers and torch.
//
//go:embed peers/transformers_cuda.py
var TransformersCUDA string

// CUDAMatMul is the script that times the matrix products of a GPU benchmark with torch.
//
//go:embed peers/cuda_matmul.py
var CUDAMatMul string

// CUDAAttention is the script that times the attention of a GPU benchmark with torch.
//
//go:embed peers/cuda_attention.py
var CUDAAttention string

// CUDACodes is the script that times products of FP8 codes with torch, and prints digests of one's outputs.
//
//go:embed peers/cuda_codes.py
var CUDACodes string

// TransformersRollout is the script that generates for a benchmark's prompts with transformers.
//
//go:embed peers/transformers_rollout.py
var TransformersRollout string

// TorchRanks is the script that exchanges and trains on several ranks with torch, transformers and FSDP2.
//
//go:embed peers/torch_ranks.py
var TorchRanks string

// CPUAdamW is the script that times torch's AdamW on the host.
//
//go:embed peers/cpu_adamw.py
var CPUAdamW string
