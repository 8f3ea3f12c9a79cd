package setup

import (
	"lockstep/data"
	"lockstep/model"
)

// SaveModel writes a folder that other tools load: a model in the Hugging Face layout with its tokenizer, or a PEFT
// adapter on base.
func SaveModel(m *model.Model, tok *data.ChatTokenizer, dir, base string) error {
	if m.LoRA != nil {
		return m.SaveAdapter(dir, base)
	}
	if err := m.SaveFolder(dir, base); err != nil {
		return err
	}
	if tok == nil {
		return nil
	}
	return tok.Save(dir)
}
