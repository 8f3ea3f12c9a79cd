package checkpoint

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"lockstep/quant"
)

// OwnKey is the field of config.json and of adapter_config.json for what other tools have no name for: {"cache":
// "mxfp8"} (kv_cache_scheme of compressed-tensors has no blocks), {"acts": "fp8x128"} (the activation_scheme of fp8
// names no order of sums), and of adapters {"acts": "mxfp8"} too.
const OwnKey = "lockstep"

// Rounding is the part of a definition that a folder names, for whoever opens it: what is deployed is then what was
// trained.
type Rounding struct{ Acts, Cache quant.Encoding }

// notRounded is what a folder calls numbers that are read as they are.
const notRounded = "none"

func (r *Rounding) fields() map[string]*quant.Encoding {
	return map[string]*quant.Encoding{"acts": &r.Acts, "cache": &r.Cache}
}

// Read takes what a field [OwnKey] says over what is known.
func (r *Rounding) Read(field json.RawMessage) error {
	if len(field) == 0 || string(field) == "null" {
		return nil
	}
	var said map[string]json.RawMessage
	if err := json.Unmarshal(field, &said); err != nil {
		return fmt.Errorf(OwnKey+": %w", err)
	}
	into := r.fields()
	for _, name := range slices.Sorted(maps.Keys(said)) {
		var value string
		err := json.Unmarshal(said[name], &value)
		switch {
		case into[name] == nil:
			return fmt.Errorf(OwnKey+": %q is not known: want acts or cache", name)
		case err != nil || value != notRounded && value != string(quant.MXFP8) &&
			(name != "acts" || value != string(quant.FP8x128)):
			return fmt.Errorf(OwnKey+": %s is %s: want %q or %q", name, said[name], quant.MXFP8, notRounded)
		case value == notRounded:
			*into[name] = quant.AsTrained
		default:
			*into[name] = quant.Encoding(value)
		}
	}
	return nil
}

// Over is the field [OwnKey] that says r where below is known; nil: nothing is to be said.
func (r Rounding) Over(below Rounding) json.RawMessage {
	said, known := map[string]string{}, below.fields()
	for name, value := range r.fields() {
		switch {
		case *value != quant.AsTrained:
			said[name] = string(*value)
		case *known[name] != quant.AsTrained:
			said[name] = notRounded
		}
	}
	if len(said) == 0 {
		return nil
	}
	text, err := json.Marshal(said)
	if err != nil {
		panic(err) // a map of strings
	}
	return text
}

// ParseRounding is what a config.json, in plain JSON, says: acts in quantization_config, the cache in [OwnKey].
func ParseRounding(config []byte) (out Rounding, err error) {
	kept, err := ParseFormat(config)
	if err != nil {
		return out, err
	}
	if kept != nil {
		out.Acts = kept.Acts
	}
	var fields map[string]json.RawMessage // a map, since fields of a struct match names in any case
	if err := json.Unmarshal(config, &fields); err != nil {
		return out, err
	}
	return out, out.Read(fields[OwnKey])
}
