package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"lockstep/data"
)

// storage is a format in which a checkpoint keeps a weight in tensors of its own making: codes, and what says which numbers these stand for. They are called as the weight
// is, with other endings.
type storage struct {
	name   string   // for people
	weight string   // ending of the weights that may be kept so
	codes  string   // ending of the codes
	dtype  string   // of the codes
	others []string // endings of the further tensors
	family string   // the only one that has the format; "": any

	// open checks types and shapes of the codes and of the others, in their order, and says what they hold.
	open func(codes data.TensorInfo, others []data.TensorInfo) (weight, error)
}

// quantization is quantization_config of config.json (names as in transformers and compressed-tensors). What says how activations are rounded, and which modules are left
// alone, is not read: activations are not rounded here, and the tensors themselves say what they are.
type quantization struct {
	Method string `json:"quant_method"`

	Block []int `json:"weight_block_size"` // of fp8

	Format string `json:"format"` // of compressed-tensors
	Groups map[string]struct {
		Format  string
		Weights *struct {
			Bits      int    `json:"num_bits"`
			Type      string `json:"type"`
			Strategy  string `json:"strategy"`
			Size      int    `json:"group_size"`
			Symmetric bool   `json:"symmetric"`
			Order     any    `json:"actorder"`
		} `json:"weights"`
	} `json:"config_groups"`
}

// Opened says what the weights were kept in and what they are now, for a person; "": they were numbers.
func (m *Model) Opened() string {
	if m.kept == nil {
		return ""
	}
	return fmt.Sprintf("weights: %s, opened as %s", m.kept.name, m.DType)
}

const quantizationKey = "quantization_config"

// storageOf is how a config.json (in plain JSON) says that weights are kept, in it or in its text_config; nil: as they are.
func storageOf(config []byte) (*storage, error) {
	type part struct {
		Quantization json.RawMessage `json:"quantization_config"`
	}
	var outer struct {
		part
		ModelType string `json:"model_type"`
		Text      part   `json:"text_config"`
	}
	if err := json.Unmarshal(config, &outer); err != nil {
		return nil, jsonPlace(config, err)
	}
	own, err := parseStorage(outer.Quantization)
	if err != nil {
		return nil, fmt.Errorf(quantizationKey+": %w", err)
	}
	text, err := parseStorage(outer.Text.Quantization)
	switch {
	case err != nil:
		return nil, fmt.Errorf("text_config: "+quantizationKey+": %w", err)
	case own == nil:
		own = text
	case text != nil && own.name != text.name:
		return nil, fmt.Errorf(quantizationKey+" says %s and that of text_config %s: remove the one that is not true of the weights", own.name, text.name)
	}
	if own != nil && own.family != "" && own.family != outer.ModelType {
		return nil, fmt.Errorf(quantizationKey+": %s is read for %s alone: convert the weights to bf16 and remove the field", own.name, own.family)
	}
	return own, nil
}

var errStorage = errors.New("want fp8 with a weight_block_size, mxfp4, or compressed-tensors of format pack-quantized with symmetric groups of 4 bits; or convert the weights to bf16 and remove the field")

func parseStorage(text json.RawMessage) (*storage, error) {
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	var q quantization
	if err := json.Unmarshal(text, &q); err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) (*storage, error) {
		return nil, fmt.Errorf("%s is not read: %w", fmt.Sprintf(format, args...), errStorage)
	}
	switch q.Method {
	case "fp8":
		switch {
		case len(q.Block) == 0:
			return refuse("fp8 with one scale for a tensor")
		case len(q.Block) != 2 || slices.Min(q.Block) <= 0 || slices.Max(q.Block) > 1<<24:
			return nil, fmt.Errorf("weight_block_size is %v: want two positive numbers", q.Block)
		}
		return fp8Blocks(q.Block[0], q.Block[1]), nil
	case "mxfp4":
		return mxfp4(), nil
	case "compressed-tensors":
		return q.packed(refuse)
	}
	return refuse("quant_method %q", q.Method)
}

// packed is the format of compressed-tensors that Kimi K2-Thinking to K2.6 come in.
func (q *quantization) packed(refuse func(string, ...any) (*storage, error)) (*storage, error) {
	const want = "pack-quantized"
	if len(q.Groups) != 1 {
		return refuse("compressed-tensors of format %q with %d config_groups", q.Format, len(q.Groups))
	}
	for _, g := range q.Groups {
		w := g.Weights
		switch {
		case q.Format != want || g.Format != "" && g.Format != want:
			return refuse("compressed-tensors of format %q", q.Format)
		case w == nil:
			return refuse("compressed-tensors without weights in config_groups")
		case w.Bits != 4 || w.Type != "int" || w.Strategy != "group" || !w.Symmetric || w.Order != nil:
			return refuse("compressed-tensors with weights of num_bits %d, type %q, strategy %q, symmetric %v, actorder %v", w.Bits, w.Type, w.Strategy, w.Symmetric, w.Order)
		case w.Size <= 0 || w.Size > 1<<24:
			return nil, fmt.Errorf("group_size is %d: want a positive number", w.Size)
		}
		return int4Groups(w.Size), nil
	}
	panic("unreachable: a map of length 1 has an entry")
}

// withoutStorage is a config.json of the same weights as plain numbers.
func withoutStorage(config []byte) ([]byte, error) {
	return editConfig(config, func(c map[string]any) {
		delete(c, quantizationKey)
		if text, ok := c["text_config"].(map[string]any); ok {
			delete(text, quantizationKey)
		}
	})
}
