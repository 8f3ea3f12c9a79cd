package data

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"lockstep/data/atomicfile"
	"lockstep/data/tokenizer"
)

// Language is how text becomes tokens for a model, and back.
type Language struct {
	*tokenizer.Tokenizer
	Template *Template // nil: the checkpoint has none
	End      int32     // ends what the model says; -1: nothing does
	built    bool      // here, not read from a model folder
}

// Special tokens of models built from nothing, as Qwen names them.
const (
	endOfTextToken = "<|endoftext|>"
	turnStart      = "<|im_start|>"
	turnEnd        = "<|im_end|>"
)

// countdownTokenizer is a byte-level BPE whose merges make " 0" ... " 199" and the words of the countdown style "meet"
// single tokens.
//
//go:embed countdown_tokenizer.json
var countdownTokenizer []byte

// NewLanguage is the language of a model built from nothing, with the default chat template: name is "bytes" (a token
// for each byte), "countdown" (bytes, and a token for each number up to 199), or a tokenizer.json or its folder.
func NewLanguage(name string) (*Language, error) {
	l := &Language{Template: DefaultTemplate(), built: true}
	var err error
	switch name {
	case "bytes":
		l.Tokenizer = tokenizer.NewBytes([]string{endOfTextToken, turnStart, turnEnd})
	case "countdown":
		l.Tokenizer, err = tokenizer.Parse(countdownTokenizer)
	default:
		l.Tokenizer, err = tokenizer.Load(name)
	}
	if err != nil {
		return nil, err
	}
	end, ok := l.ID(turnEnd)
	if !ok {
		return nil, fmt.Errorf("%s: has no token %s, which ends a turn of the default chat template: use \"bytes\" "+
			"or a tokenizer of the Qwen family", name, turnEnd)
	}
	l.End = end
	return l, nil
}

// LoadLanguage reads the tokenizer and the chat template of a model folder; eos are the ids that config.json ends with.
func LoadLanguage(dir string, eos []int32) (*Language, error) {
	t, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	l := &Language{Tokenizer: t, End: -1}
	if len(eos) > 0 {
		l.End = eos[0]
	}
	l.Template, err = LoadTemplate(dir)
	switch {
	case errors.Is(err, ErrNoTemplate):
		return l, nil
	case err != nil:
		return nil, err
	}
	if id, ok := t.ID(l.Template.EndOfTurn()); ok {
		l.End = id
	}
	return l, nil
}

// Save writes tokenizer.json and tokenizer_config.json for a model built from nothing; one that was read keeps its own
// files.
func (l *Language) Save(dir string) error {
	if !l.built {
		return nil
	}
	if err := l.Tokenizer.Save(filepath.Join(dir, "tokenizer.json")); err != nil {
		return err
	}
	text, err := json.MarshalIndent(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": turnEnd, "pad_token": endOfTextToken,
		"bos_token":     nil,
		"chat_template": l.Template.Source(), "clean_up_tokenization_spaces": false,
	}, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, "tokenizer_config.json"), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}
