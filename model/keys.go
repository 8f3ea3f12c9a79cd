package model

import (
	"reflect"
	"slices"
	"strings"
)

// ConfigKeys are the keys of config.json, or of its text_config, that some family reads, sorted.
func ConfigKeys() []string {
	keys := append(jsonKeys(reflect.TypeFor[configHead]()), "model_type", "architectures", "text_config",
		quantizationKey)
	for _, f := range families {
		keys = append(keys, jsonKeys(reflect.TypeOf(f.config))...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
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
