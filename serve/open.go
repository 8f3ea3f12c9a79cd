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

// Served is a model with its language, loaded to be used as it is.
type Served struct {
	Model    *model.Model
	Language *data.Language // nil: the folder has no tokenizer
}

// Open loads a Hugging Face folder and, where adapter is not empty, a PEFT adapter on it.
func Open(dev kernels.Device, dir, adapter string, o model.Options) (*Served, error) {
	m, err := model.LoadFolder(dev, dir, adapter, o)
	if err != nil {
		return nil, err
	}
	s := &Served{Model: m}
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

// Stops are the ids that end what the model says.
func (s *Served) Stops() []int32 {
	stops := s.Model.EOS
	if s.Language != nil && s.Language.End >= 0 {
		stops = append([]int32{s.Language.End}, stops...)
	}
	return stops
}
