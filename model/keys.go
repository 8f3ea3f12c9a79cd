package model

import (
	"reflect"
	"strings"
)

// ConfigKeys are the keys of config.json that a family reads, or of its text_config where it wraps a text model; nil for a family that is not known.
func ConfigKeys(modelType string) []string {
	f, ok := families[modelType]
	if !ok {
		return nil
	}
	keys := append(jsonKeys(reflect.TypeOf(f.config)), jsonKeys(reflect.TypeFor[configHead]())...)
	return append(keys, "model_type", "architectures", "text_config")
}

// jsonKeys are the names that encoding/json reads into a struct.
func jsonKeys(t reflect.Type) (keys []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			keys = append(keys, name)
		} else if f.Anonymous {
			keys = append(keys, jsonKeys(f.Type)...)
		}
	}
	return keys
}
