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

// ServedModel is a model with its language, loaded to be used as it is.
type ServedModel struct {
	Model    *model.Model
	Language *data.Language // nil: the folder has no tokenizer
}

// Open loads a Hugging Face folder and, where adapter is not empty, a PEFT adapter on it.
func Open(dev kernels.Device, dir, adapter string, o model.Options) (*ServedModel, error) {
	m, err := model.LoadFolder(dev, dir, adapter, o)
	if err != nil {
		return nil, err
	}
	s := &ServedModel{Model: m}
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if s.Language, err = data.LoadLanguage(dir, m.EOS); err != nil {
		return nil, err
	}
	if n := s.Language.Vocab(); n > m.Vocab {
		return nil, fmt.Errorf("%s: the tokenizer has %d tokens and the model a vocabulary of %d", dir, n, m.Vocab)
	}
	return s, nil
}

// Stops are the ids that end what the model says; see [Stops].
func (s *ServedModel) Stops() []int32 { return Stops(s.Model, s.Language) }

// Stops are the ids that end what a model says, wherever it generates (generate, serve, reinforcement learning,
// evaluation) and where a chat's answers end in training: eos_token of tokenizer_config.json, and eos_token_id of
// config.json and of generation_config.json. l nil: there is no tokenizer.
func Stops(m *model.Model, l *data.Language) []int32 {
	if l == nil || l.End < 0 {
		return m.EOS
	}
	return data.Union([]int32{l.End}, m.EOS)
}
