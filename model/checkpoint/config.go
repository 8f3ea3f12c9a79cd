package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"

	"lockstep/data/pyjson"
)

// EditConfig changes fields of a config.json; all others keep their values, and numbers their spelling.
func EditConfig(config []byte, edit func(fields map[string]any)) ([]byte, error) {
	plain := pyjson.Plain(config)
	dec := json.NewDecoder(bytes.NewReader(plain))
	dec.UseNumber()
	var c map[string]any
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	edit(c)
	text, err := json.MarshalIndent(c, "", "  ")
	if !bytes.Equal(plain, config) {
		text = pyjson.Bare(text)
	}
	return text, err
}

// WithoutQuantization is a config.json of the same weights as plain numbers.
func WithoutQuantization(config []byte) ([]byte, error) {
	return EditConfig(config, func(c map[string]any) {
		delete(c, ConfigKey)
		if text, ok := c["text_config"].(map[string]any); ok {
			delete(text, ConfigKey)
		}
	})
}
