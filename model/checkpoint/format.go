package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"lockstep/data/pyjson"
	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/quant"
)

// Format is a format in which a checkpoint stores a weight as several tensors: codes, and what they are decoded by.
// Their names are that of the weight with other endings.
type Format struct {
	Name   string   // for people
	weight string   // ending of the weights that may be kept so
	codes  string   // ending of the codes
	dtype  string   // of the codes
	others []string // endings of the further tensors
	// Ignored is the ending of tensors that say how activations were rounded, which are not read; "": none.
	Ignored string
	Acts    quant.Encoding // what inputs of what is in codes are rounded to
	family  string         // the only one that has the format; "": any

	// open checks types and shapes of the codes and of the others, in their order, and says what they hold.
	open func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (Weight, error)
}

// quantization is quantization_config of config.json (names as in transformers and compressed-tensors). Fields about
// modules that are not quantised are not read: the tensors themselves show what is quantised.
type quantization struct {
	Method string       `json:"quant_method"`
	Block  []int        `json:"weight_block_size"` // of fp8
	Inputs *activations `json:"input_activations"` // where there are no groups
	compressedTensors
	bitsandbytes
}

// ConfigKey is the field of config.json that says how weights are stored.
const ConfigKey = "quantization_config"

// ParseFormat is how a config.json (in plain JSON) says that weights are stored, in it or in its text_config; nil: as
// they are.
func ParseFormat(config []byte) (*Format, error) {
	// a map, since fields of a struct match names in any case
	var outer, inner map[string]json.RawMessage
	var family string
	if err := json.Unmarshal(config, &outer); err != nil {
		return nil, pyjson.Place(config, err)
	}
	for _, field := range []struct {
		name string
		into any
	}{{"text_config", &inner}, {"model_type", &family}} {
		if raw, ok := outer[field.name]; ok {
			if err := json.Unmarshal(raw, field.into); err != nil {
				return nil, fmt.Errorf("%s: %w", field.name, err)
			}
		}
	}
	own, err := parseQuantization(outer[ConfigKey])
	if err != nil {
		return nil, fmt.Errorf(ConfigKey+": %w", err)
	}
	text, err := parseQuantization(inner[ConfigKey])
	switch {
	case err != nil:
		return nil, fmt.Errorf("text_config: "+ConfigKey+": %w", err)
	case own == nil:
		own = text
	case text != nil && own.Name != text.Name:
		return nil, fmt.Errorf(ConfigKey+" says %s and that of text_config %s: remove the one that is not true "+
			"of the weights", own.Name, text.Name)
	}
	if own != nil && own.family != "" && own.family != family {
		return nil, fmt.Errorf(ConfigKey+": %s is read for %s alone: convert the weights to bf16 and remove "+
			"the field", own.Name, own.family)
	}
	return own, nil
}

var errFormat = errors.New("want fp8 with a weight_block_size, mxfp4, bitsandbytes of bnb_4bit_quant_type nf4, or " +
	"compressed-tensors of format float-quantized, pack-quantized, mxfp4-pack-quantized or mxfp8-quantized; or " +
	"convert the weights to bf16 and remove the field")

func parseQuantization(text json.RawMessage) (*Format, error) {
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	var q quantization
	if err := json.Unmarshal(text, &q); err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) (*Format, error) {
		return nil, fmt.Errorf("%s is not read: %w", fmt.Sprintf(format, args...), errFormat)
	}
	switch q.Method {
	case "fp8":
		if len(q.Block) == 0 {
			return refuse("fp8 without weight_block_size")
		}
		if err := checkBlock("weight_block_size", q.Block); err != nil {
			return nil, err
		}
		f := fp8Blocks(q.Block[0], q.Block[1])
		f.Acts = q.Inputs.encoding()
		return f, nil
	case "mxfp4":
		f := mxfp4()
		f.Acts = q.Inputs.encoding()
		return f, nil
	case "compressed-tensors":
		return q.compressedTensors.parse(refuse)
	case "bitsandbytes":
		return q.bitsandbytes.parse(refuse)
	}
	return refuse("quant_method %q", q.Method)
}

// readScales reads scales, none of which may be NaN or infinite.
func readScales(t safetensors.TensorInfo) ([]float32, error) {
	s := make([]float32, t.Len())
	if err := safetensors.ToF32(s, t); err != nil {
		return nil, err
	}
	for i, x := range s {
		if x-x != 0 {
			return nil, fmt.Errorf("%s: tensor %s: scale %v is %v: fetch the checkpoint again", t.File, t.Name,
				place(t.Shape, i), x)
		}
	}
	return s, nil
}

// finite is an error where codes decode to NaN or to more than fp32 holds.
func finite(values []float32, codes safetensors.TensorInfo) error {
	var isNaN, isInf atomic.Bool
	InParallel(len(values), 1, func(from, to int) {
		for _, x := range values[from:to] {
			if x-x == 0 {
				continue
			}
			if x != x {
				isNaN.Store(true)
			} else {
				isInf.Store(true)
			}
			return
		}
	})
	switch {
	case isNaN.Load():
		return fmt.Errorf("%s: tensor %s: codes decode to NaN: fetch the checkpoint again", codes.File, codes.Name)
	case isInf.Load():
		return tooLarge(codes, kernels.F32)
	}
	return nil
}

func tooLarge(codes safetensors.TensorInfo, d kernels.DType) error {
	return fmt.Errorf("%s: tensor %s: codes decode to more than %s holds: fetch the checkpoint again", codes.File,
		codes.Name, d)
}

// place is where element i of a tensor lies.
func place(shape []int, i int) []int {
	at := make([]int, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		at[d], i = i%shape[d], i/shape[d]
	}
	return at
}

func misfit(t safetensors.TensorInfo, want string) error {
	return fmt.Errorf("%s: tensor %s has shape %v, want %s", t.File, t.Name, t.Shape, want)
}

func wantType(t safetensors.TensorInfo, types ...string) error {
	if slices.Contains(types, t.DType) {
		return nil
	}
	return fmt.Errorf("%s: tensor %s is %s, want %v", t.File, t.Name, t.DType, types)
}
