package model

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep/data/pyjson"
	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/model/peft"
	"lockstep/quant"
)

// Summary is what a config.json describes and what it takes to train it.
type Summary struct {
	Family        string
	Total, Active int // parameters, and those that one token uses
	Layers        int
	Hidden, Vocab int
	Positions     int
	Demands       []Demand               // by storage type: fp32, bf16
	Encoded       map[quant.Encoding]int // bytes of weights in bf16 with projections in a format, as by default

	// Of a model folder.
	Tensors int
	Formats map[string]int // bytes by storage format
	Kept    string         // the format that weights are kept in besides; "": as they are
	Decoded int            // weights that are kept so
	InCodes int            // bytes of all weights in bf16, with those in codes
}

// Demand is the memory of training in a storage type: of every weight, or of adapters of rank [AdapterRank] on every
// projection outside experts.
type Demand struct {
	DType      kernels.DType
	Full, LoRA Memory
}

// AdapterRank is the rank of the adapters in a [Demand].
const AdapterRank = 16

// Summarise reads a config.json.
func Summarise(config []byte) (*Summary, error) {
	s := &Summary{}
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		m, err := Describe(config, dtype)
		if err != nil {
			return nil, err
		}
		s.Family, s.Layers, s.Hidden, s.Vocab, s.Positions = m.Family, len(m.Blocks), m.Hidden, m.Vocab, m.MaxLength
		s.Total, s.Active = m.Parameters()
		d := Demand{DType: dtype, Full: m.Memory()}
		if err := m.AddLoRA(peft.Config{Rank: AdapterRank, Alpha: 1, Pattern: ".*"}); err != nil {
			return nil, err
		}
		d.LoRA = m.Memory()
		s.Demands = append(s.Demands, d)
	}
	s.Encoded = map[quant.Encoding]int{}
	for _, e := range quant.Encodings {
		m, err := Describe(config, kernels.BF16)
		if err == nil {
			err = m.encodeWhere(anyWeight, DefaultEncode(e))
		}
		if err != nil {
			return nil, err
		}
		s.Encoded[e] = m.Memory().Weights
	}
	return s, nil
}

// anyWeight is the check of a device that takes every quantized weight.
func anyWeight(kernels.QuantizedWeight) error { return nil }

// Inspect reads a folder's config.json and the headers of its weights; no weight is loaded.
func Inspect(dir string) (s *Summary, err error) {
	config, err := readFile(dir, "config.json", "is it a model folder?")
	if err != nil {
		return nil, err
	}
	if s, err = Summarise(config); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	kept, err := checkpoint.ParseFormat(pyjson.Plain(config))
	if err != nil {
		return nil, fmt.Errorf("%s: config.json: %w", dir, err)
	}
	c, err := safetensors.OpenCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	w, err := checkpoint.NewWeights(c, kept)
	if err != nil {
		return nil, err
	}
	s.Formats = map[string]int{}
	if kept != nil {
		m, err := Describe(config, kernels.BF16)
		if err != nil {
			return nil, err
		}
		m.keepWhere(anyWeight, w, quant.AsTrained)
		if s.Kept = kept.Name; m.choice.kept > 0 {
			s.InCodes = m.Memory().Weights
		}
	}
	for _, name := range c.Names() {
		if names, ok := w.Encoded(w.Owner(name)); ok && names[0] == name {
			s.Decoded++
		}
		t, _ := c.Tensor(name)
		s.Tensors++
		s.Formats[t.DType] += len(t.Data)
	}
	return s, nil
}

// Bytes is what the device keeps for training.
func (n Memory) Bytes() int { return n.Weights + n.Training }

func (s *Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "family      %s\n", s.Family)
	fmt.Fprintf(&b, "parameters  %d total, %d active for a token\n", s.Total, s.Active)
	fmt.Fprintf(&b, "shape       %d layers, hidden %d, vocabulary %d, %d positions\n", s.Layers, s.Hidden, s.Vocab,
		s.Positions)
	if s.Formats != nil {
		fmt.Fprintf(&b, "tensors     %d:", s.Tensors)
		for _, f := range slices.SortedFunc(maps.Keys(s.Formats), cmp.Compare) {
			fmt.Fprintf(&b, " %s %s", f, gib(s.Formats[f]))
		}
		b.WriteString("\n")
	}
	switch {
	case s.Kept == "":
	case s.InCodes == 0:
		fmt.Fprintf(&b, "quantised   %d weights in %s, which are opened\n", s.Decoded, s.Kept)
	default:
		fmt.Fprintf(&b, "quantised   %d weights in %s: %s of weights where they are not trained and stay in codes\n",
			s.Decoded, s.Kept, gib(s.InCodes))
	}
	for _, d := range s.Demands {
		fmt.Fprintf(&b, "to train    in %s: full %s, LoRA of rank %d outside experts %s; activations come on top\n",
			d.DType, gib(d.Full.Bytes()), AdapterRank, gib(d.LoRA.Bytes()))
	}
	for _, d := range s.Demands {
		fmt.Fprintf(&b, "to serve    in %s: weights %s, cache %d bytes for each token and %d for each sequence\n",
			d.DType, gib(d.Full.Weights), d.Full.Token, d.Full.Sequence)
	}
	var formats []string
	for _, e := range quant.Encodings {
		formats = append(formats, fmt.Sprintf("%s %s", e, gib(s.Encoded[e])))
	}
	fmt.Fprintf(&b, "in codes    by model.weights, the rest in bf16: weights in %s\n", strings.Join(formats, ", "))
	return b.String()
}

func gib(n int) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }
