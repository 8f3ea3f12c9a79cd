package model

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep/data"
	"lockstep/kernels"
)

// Summary is what a model folder holds and what it takes to train it.
type Summary struct {
	Family        string
	Total, Active int // parameters, and those that one token uses
	Layers        int
	Hidden, Vocab int
	Positions     int
	Tensors       int
	Formats       map[string]int // bytes by storage format
}

// Inspect reads a folder's config.json and the headers of its weights; no weight is loaded.
func Inspect(dir string) (s *Summary, err error) {
	config, err := readFile(dir, "config.json", "is it a model folder?")
	if err != nil {
		return nil, err
	}
	m, err := Describe(config, kernels.BF16)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	c, err := data.OpenCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	s = &Summary{Family: m.Family, Layers: len(m.Blocks), Hidden: m.Hidden, Vocab: m.Vocab, Positions: m.MaxLength, Formats: map[string]int{}}
	s.Total, s.Active = m.Parameters()
	for _, name := range c.Names() {
		t, _ := c.Tensor(name)
		s.Tensors++
		s.Formats[t.DType] += len(t.Data)
	}
	return s, nil
}

// Bytes to hold weights, gradients, masters and moments in full fine-tuning, and the frozen weights alone (what LoRA adds is small).
func (s *Summary) trainingBytes(dtype kernels.DType) (full, lora int) {
	weight := s.Total * dtype.Size()
	full = weight + s.Total*(4+4+4) // gradient and two moments, fp32
	if dtype != kernels.F32 {
		full += s.Total * 4
	}
	return full, weight
}

func (s *Summary) String() string {
	var b strings.Builder
	gib := func(n int) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }
	fmt.Fprintf(&b, "family      %s\n", s.Family)
	fmt.Fprintf(&b, "parameters  %d total, %d active for a token\n", s.Total, s.Active)
	fmt.Fprintf(&b, "shape       %d layers, hidden %d, vocabulary %d, %d positions\n", s.Layers, s.Hidden, s.Vocab, s.Positions)
	fmt.Fprintf(&b, "tensors     %d:", s.Tensors)
	for _, f := range slices.SortedFunc(maps.Keys(s.Formats), cmp.Compare) {
		fmt.Fprintf(&b, " %s %s", f, gib(s.Formats[f]))
	}
	b.WriteString("\n")
	for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
		full, lora := s.trainingBytes(d)
		fmt.Fprintf(&b, "to train    in %s: full %s, LoRA %s and the adapters; activations come on top\n", d, gib(full), gib(lora))
	}
	return b.String()
}
