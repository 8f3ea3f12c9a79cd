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
	return saveTokenizer(tok, dir)
}

// SaveDeployed is SaveModel of a result: weights that are trained in codes are written in codes, where a format of
// releases holds them.
func SaveDeployed(m *model.Model, tok *data.ChatTokenizer, dir, base string) error {
	if !m.InCodes() || m.LoRA != nil || m.CheckCodes() != nil {
		return SaveModel(m, tok, dir, base)
	}
	if err := m.SaveInCodes(dir, base); err != nil {
		return err
	}
	return saveTokenizer(tok, dir)
}

func saveTokenizer(tok *data.ChatTokenizer, dir string) error {
	if tok == nil {
		return nil
	}
	return tok.Save(dir)
}
