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

// ChatTokenizer is a model's tokenizer, with its chat template and the token that ends an answer.
type ChatTokenizer struct {
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

// NewChatTokenizer is the tokenizer of a model built from nothing, with the default chat template: name is "bytes" (a
// token for each byte), "countdown" (bytes, and a token for each number up to 199), or a tokenizer.json or its folder.
func NewChatTokenizer(name string) (*ChatTokenizer, error) {
	tok := &ChatTokenizer{Template: DefaultTemplate(), built: true}
	var err error
	switch name {
	case "bytes":
		tok.Tokenizer = tokenizer.NewBytes([]string{endOfTextToken, turnStart, turnEnd})
	case "countdown":
		tok.Tokenizer, err = tokenizer.Parse(countdownTokenizer)
	default:
		tok.Tokenizer, err = tokenizer.Load(name)
	}
	if err != nil {
		return nil, err
	}
	end, ok := tok.ID(turnEnd)
	if !ok {
		return nil, fmt.Errorf("%s: has no token %s, which ends a turn of the default chat template: use \"bytes\" "+
			"or a tokenizer of the Qwen family", name, turnEnd)
	}
	tok.End = end
	return tok, nil
}

// LoadChatTokenizer reads the tokenizer and the chat template of a model folder; eos are the ids that config.json ends
// with.
func LoadChatTokenizer(dir string, eos []int32) (*ChatTokenizer, error) {
	t, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	tok := &ChatTokenizer{Tokenizer: t, End: -1}
	if len(eos) > 0 {
		tok.End = eos[0]
	}
	tok.Template, err = LoadTemplate(dir)
	switch {
	case errors.Is(err, ErrNoTemplate):
		return tok, nil
	case err != nil:
		return nil, err
	}
	if id, ok := t.ID(tok.Template.EndOfTurn()); ok {
		tok.End = id
	}
	return tok, nil
}

// Save writes tokenizer.json, tokenizer_config.json and generation_config.json for a model built from nothing; one that
// was read keeps its own files.
func (tok *ChatTokenizer) Save(dir string) error {
	if !tok.built {
		return nil
	}
	if err := tok.Tokenizer.Save(filepath.Join(dir, "tokenizer.json")); err != nil {
		return err
	}
	text, err := json.MarshalIndent(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": turnEnd, "pad_token": endOfTextToken,
		"bos_token":     nil,
		"chat_template": savedChatML, "clean_up_tokenization_spaces": false,
	}, "", "  ")
	if err != nil {
		return err
	}
	generation := fmt.Appendf(nil, "{\n  \"eos_token_id\": %d\n}\n", tok.End)
	for name, text := range map[string][]byte{"tokenizer_config.json": text, generationFile: generation} {
		if err := atomicfile.Write(filepath.Join(dir, name), func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
