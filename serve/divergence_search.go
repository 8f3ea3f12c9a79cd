package serve

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
)

// Alternative is what a forward is compared with: the same model by another definition, with weights rounded to a
// format.
type Alternative struct {
	Text       string // as it was given
	Definition kernels.Definition
	Weights    model.Encode // of linear layers; As "": as they are
}

// ParseAlternative applies changes such as "combine=bf16,key_split=256,weights=fp8" to a definition.
func ParseAlternative(def kernels.Definition, text string) (Alternative, error) {
	o := Alternative{Text: text, Definition: def, Weights: model.Encode{Projections: true}}
	fail := func(err error) (Alternative, error) { return Alternative{}, fmt.Errorf("--against %s: %w", text, err) }
	coded := false
	for _, change := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(change, "=")
		if !ok {
			return fail(fmt.Errorf("%q has no value: want a list of setting=value", change))
		}
		err := error(nil)
		switch {
		case key == "weights":
			o.Weights.As = quant.Encoding(value)
			err = o.Weights.As.Validate()
		case key == "coded":
			if coded = true; value != "experts" && value != "projections" {
				err = fmt.Errorf("coded %q: want experts or projections", value)
			}
			o.Weights.Projections = value == "projections"
		case slices.Contains(kernels.Settings, key):
			err = o.Definition.Set(key, value)
		default:
			err = fmt.Errorf("no setting %q: want one of weights, coded, %s", key, strings.Join(kernels.Settings, ", "))
		}
		if err != nil {
			return fail(err)
		}
	}
	if coded && o.Weights.As == quant.AsTrained {
		return fail(errors.New("coded says which weights are rounded, and none are: add weights=FORMAT"))
	}
	return o, nil
}

// OpDifference compares the outputs of an operation in two forwards, over all batches.
type OpDifference struct {
	Module   string  `json:"module"` // "block 3 / moe"
	Op       string  `json:"op"`     // "combine"; "combine 2" is the second of its name in the module
	Elements int     `json:"elements"`
	Differ   int     `json:"differ"`         // elements with different bits
	Max      float64 `json:"max_difference"` // absolute, of two elements
	Relative float64 `json:"relative"`       // 2-norm of the differences over that of the first forward's elements

	differences, squares float64
}

func (p *OpDifference) add(a, b []float32) {
	p.Elements += len(a)
	for i, x := range a {
		y := b[i]
		p.squares += float64(x) * float64(x)
		if math.Float32bits(x) == math.Float32bits(y) {
			continue
		}
		d := float64(x) - float64(y)
		p.Differ++
		p.Max = max(p.Max, math.Abs(d))
		p.differences += float64(d * d)
	}
	if p.Relative = 0; p.squares > 0 {
		p.Relative = math.Sqrt(p.differences / p.squares)
	}
}

// DivergenceSearch is the first operation at which two forwards differ, and how the difference grows.
type DivergenceSearch struct {
	First  *OpDifference  `json:"first"`  // the first operation with different outputs; nil: none
	Growth []OpDifference `json:"growth"` // last operations of the embedding, of each module, and of the head

	ops    []*OpDifference
	byName map[string]*OpDifference
}

// compare receives the outputs of two recorders, one by one, until both are closed.
func (s *DivergenceSearch) compare(a, b <-chan opOutput) {
	s.byName = map[string]*OpDifference{}
	times := map[string]int{} // that an operation has run in its module for this batch
	for x := range a {
		y, ok := <-b
		if !ok {
			continue // the other forward has failed; its error is reported
		}
		if x.module != y.module || x.op != y.op || len(x.values) != len(y.values) {
			panic(fmt.Sprintf("serve: %s of %d elements against %s of %d", x, len(x.values), y, len(y.values)))
		}
		if x.op == "embed" {
			clear(times)
		}
		// the head computes its rows in chunks
		if times[x.String()]++; times[x.String()] > 1 && x.module != headModule {
			x.op = fmt.Sprintf("%s %d", x.op, times[x.String()])
		}
		p, ok := s.byName[x.String()]
		if !ok {
			p = &OpDifference{Module: x.module, Op: x.op}
			s.byName[x.String()] = p
			s.ops = append(s.ops, p)
		}
		p.add(x.values, y.values)
	}
	for range b { // the first forward has failed
	}
}

// finish finds the first difference and the last operation of each module.
func (s *DivergenceSearch) finish() {
	for i, p := range s.ops {
		if p.Differ > 0 && s.First == nil {
			s.First = p
		}
		if i+1 == len(s.ops) || s.ops[i+1].Module != p.Module {
			s.Growth = append(s.Growth, *p)
		}
	}
}

// searchDivergence runs every batch through a model and an alternative on another device, and compares them operation
// by operation. It returns the alternative's log-probabilities of the recorded tokens.
func searchDivergence(r *parallel.Rank, m *model.Model, other kernels.Device, rounding model.Encode,
	batches [][]recording) (search *DivergenceSearch,
	logprobs []float32, err error) {
	otherModel, err := m.EmptyCopy(other, m.DType, rounding)
	if err != nil {
		return nil, nil, err
	}
	if err := otherModel.CopyWeights(m, rounding); err != nil {
		return nil, nil, err
	}
	a, b := newRecorder(r.Dev, m), newRecorder(other, otherModel)
	m.ComputeWith(a)
	defer m.ComputeWith(r.Dev)
	otherModel.ComputeWith(b)
	search = &DivergenceSearch{}
	failed, compared := make(chan error, 1), make(chan struct{})
	go func() {
		failed <- parallel.Run([]kernels.Device{other}, func(o *parallel.Rank) error {
			defer close(b.outputs)
			o.Dev = b
			logprobs = rescore(o, otherModel, batches)
			return nil
		})
	}()
	go func() {
		defer close(compared)
		search.compare(a.outputs, b.outputs)
	}()
	func() {
		defer close(a.outputs)
		rescore(&parallel.Rank{Dev: a, Stack: r.Stack, ID: r.ID, Size: r.Size}, m, batches)
	}()
	<-compared
	if err := <-failed; err != nil {
		return nil, nil, err
	}
	if i := slices.IndexFunc(logprobs, func(q float32) bool { return q-q != 0 }); i >= 0 {
		return nil, nil, fmt.Errorf("a log-probability by the other definition is %v: these weights overflow under it",
			logprobs[i])
	}
	search.finish()
	return search, logprobs, nil
}

func (s *DivergenceSearch) write(w *tabwriter.Writer) {
	if s.First == nil {
		fmt.Fprintln(w, "no operation differs")
		return
	}
	p := s.First
	fmt.Fprintf(w, "first difference: %s / %s, %d of %d elements, by up to %.3g, relative %.3g\n", p.Module, p.Op,
		p.Differ, p.Elements, p.Max, p.Relative)
	fmt.Fprintln(w, "differ\tmax\trelative\t  after\t")
	for _, p := range s.Growth {
		fmt.Fprintf(w, "%.2f%%\t%.3g\t%.3g\t  %s / %s\t\n", 100*float64(p.Differ)/float64(max(1, p.Elements)), p.Max,
			p.Relative, p.Module, p.Op)
	}
}
