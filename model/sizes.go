package model

import (
	"encoding/json"
	"fmt"
	"reflect"
)

const (
	mostSize     = 1 << 24 // of a field of config.json
	mostElements = 1 << 44 // of a model: sixteen times those of the largest published one
)

// checkSizes refuses a config.json with an integer so large that a product with it might overflow. typ is the struct
// that the family reads.
func checkSizes(config []byte, typ reflect.Type) error {
	var fields map[string]json.RawMessage
	var wrapped struct {
		Text map[string]json.RawMessage `json:"text_config"`
	}
	if json.Unmarshal(config, &fields) != nil || json.Unmarshal(config, &wrapped) != nil {
		return nil // the family says what is wrong
	}
	for _, f := range jsonFields(typ) {
		if !holdsInts(f.typ) {
			continue
		}
		for _, text := range []json.RawMessage{fields[f.name], wrapped.Text[f.name]} {
			for _, v := range integers(text) {
				if v < -1 || v > mostSize {
					return fmt.Errorf("%s is %d: want a number from 0 to %d", f.name, v, mostSize)
				}
			}
		}
	}
	return nil
}

// holdsInts tells whether a field is an int, or a list of them.
func holdsInts(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t.Kind() == reflect.Int
}

// integers of a JSON value: one, or a list of them.
func integers(text json.RawMessage) []int64 {
	var one int64
	if json.Unmarshal(text, &one) == nil {
		return []int64{one}
	}
	var list []int64
	if json.Unmarshal(text, &list) != nil {
		return nil
	}
	return list
}
