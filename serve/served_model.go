package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"lockstep/data"
	"lockstep/model"
	"lockstep/parallel"
)

// ServedModel is a model for inference, with its tokenizer and chat template.
type ServedModel struct {
	Ranks
	Tokenizer *data.ChatTokenizer // nil: the folder has no tokenizer
}

// Open loads a model from a Hugging Face folder, with a PEFT adapter if adapter is not empty, onto the ranks of a
// world. r is the first, whose goroutine calls. w nil: there are no others.
func Open(w *parallel.World, r *parallel.Rank, dir, adapter string, o model.Options) (*ServedModel, error) {
	if w != nil {
		o.Ranks = w.Devices()
	}
	m, err := model.LoadFolder(r.Dev, dir, adapter, o)
	if err != nil {
		return nil, err
	}
	tok, err := LoadTokenizer(dir, m)
	if err != nil {
		return nil, err
	}
	ranks, err := Distribute(w, r, m)
	return &ServedModel{Ranks: ranks, Tokenizer: tok}, err
}

// LoadTokenizer reads the tokenizer of a model's folder; nil: it has none.
func LoadTokenizer(dir string, m *model.Model) (*data.ChatTokenizer, error) {
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	tok, err := data.LoadChatTokenizer(dir, m.EOS)
	if err != nil {
		return nil, err
	}
	if n := tok.Vocab(); n > m.Vocab {
		return nil, fmt.Errorf("%s: the tokenizer has %d tokens, but the model's vocabulary has %d", dir, n, m.Vocab)
	}
	return tok, nil
}

// StopTokens are the ids that end a sample; see [StopTokens].
func (s *ServedModel) StopTokens() []int32 { return StopTokens(s.Model, s.Tokenizer) }

// StopTokens are the ids that end a sample wherever the model generates (generate, serve, reinforcement learning,
// evaluation), and an assistant message in training: eos_token of tokenizer_config.json, and eos_token_id of
// config.json and of generation_config.json. l is nil without a tokenizer.
func StopTokens(m *model.Model, tok *data.ChatTokenizer) []int32 {
	if tok == nil || tok.End < 0 {
		return m.EOS
	}
	return data.Union([]int32{tok.End}, m.EOS)
}
