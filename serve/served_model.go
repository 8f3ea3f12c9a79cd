package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
)

// ServedModel is a model for inference, with its tokenizer and chat template.
type ServedModel struct {
	Model     *model.Model
	Tokenizer *data.ChatTokenizer // nil: the folder has no tokenizer
}

// Open loads a model from a Hugging Face folder, with a PEFT adapter if adapter is not empty.
func Open(dev kernels.Device, dir, adapter string, o model.Options) (*ServedModel, error) {
	m, err := model.LoadFolder(dev, dir, adapter, o)
	if err != nil {
		return nil, err
	}
	s := &ServedModel{Model: m}
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if s.Tokenizer, err = data.LoadChatTokenizer(dir, m.EOS); err != nil {
		return nil, err
	}
	if n := s.Tokenizer.Vocab(); n > m.Vocab {
		return nil, fmt.Errorf("%s: the tokenizer has %d tokens, but the model's vocabulary has %d", dir, n, m.Vocab)
	}
	return s, nil
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
