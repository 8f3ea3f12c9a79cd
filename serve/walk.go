package serve

import (
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

// Other is what a forward is compared with: the same model by another definition, with weights as a format leaves them.
type Other struct {
	Definition kernels.Definition
	Weights    quant.Format
}

// ParseOther reads changes of a definition, such as "combine=bf16,key_split=256,weights=fp8".
func ParseOther(def kernels.Definition, text string) (Other, error) {
	o := Other{Definition: def}
	fail := func(err error) (Other, error) { return Other{}, fmt.Errorf("--against %s: %w", text, err) }
	for _, change := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(change, "=")
		if !ok {
			return fail(fmt.Errorf("%q has no value: want a list of setting=value", change))
		}
		err := error(nil)
		switch {
		case key == "weights":
			o.Weights = quant.Format(value)
			err = o.Weights.Validate()
		case slices.Contains(kernels.Settings, key):
			err = o.Definition.Set(key, value)
		default:
			err = fmt.Errorf("no setting %q: want one of weights, %s", key, strings.Join(kernels.Settings, ", "))
		}
		if err != nil {
			return fail(err)
		}
	}
	return o, nil
}

// Parting is how far an operation's results are from those of another forward, over all batches.
type Parting struct {
	Place    string  `json:"place"` // "block 3 / moe"
	Op       string  `json:"op"`    // "combine"; the second of its name in a place is "combine 2"
	Elements int     `json:"elements"`
	Differ   int     `json:"differ"`         // by a bit
	Max      float64 `json:"max_difference"` // of two elements
	Relative float64 `json:"relative"`       // root of the sum of squares of the differences, over that of the elements

	differences, squares float64
}

func (p *Parting) add(a, b []float32) {
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

// Walk is where two forwards part, and how that grows.
type Walk struct {
	First  *Parting  `json:"first"`  // operation whose results differ; nil: none does
	Growth []Parting `json:"growth"` // the embedding, the end of each residual step, the log-probabilities

	all []*Parting
	at  map[string]*Parting
}

// compare takes the outcomes of two taps, one by one, until both are closed.
func (v *Walk) compare(a, b <-chan outcome) {
	v.at = map[string]*Parting{}
	times := map[string]int{} // an operation was seen in its place, of the present batch
	for x := range a {
		y, ok := <-b
		if !ok {
			continue // the other forward has failed and says why
		}
		if x.place != y.place || x.op != y.op || len(x.values) != len(y.values) {
			panic(fmt.Sprintf("serve: %s of %d elements against %s of %d", x, len(x.values), y, len(y.values)))
		}
		if x.op == "embed" {
			clear(times)
		}
		if times[x.String()]++; times[x.String()] > 1 && x.place != headPlace { // the head takes its rows in pieces
			x.op = fmt.Sprintf("%s %d", x.op, times[x.String()])
		}
		p, ok := v.at[x.String()]
		if !ok {
			p = &Parting{Place: x.place, Op: x.op}
			v.at[x.String()] = p
			v.all = append(v.all, p)
		}
		p.add(x.values, y.values)
	}
	for range b { // the first forward has failed
	}
}

// finish finds the first parting and the last operation of each place.
func (v *Walk) finish() {
	for i, p := range v.all {
		if p.Differ > 0 && v.First == nil {
			v.First = p
		}
		if i+1 == len(v.all) || v.all[i+1].Place != p.Place {
			v.Growth = append(v.Growth, *p)
		}
	}
}

// walk runs every batch through a model and its other, operation by operation side by side, and returns what the other
// gives for the recorded tokens.
func walk(r *parallel.Rank, m *model.Model, other kernels.Device, format quant.Format, batches [][]recording) (v *Walk,
	logprobs []float32, err error) {
	twin, err := m.EmptyCopy(other, m.DType)
	if err != nil {
		return nil, nil, err
	}
	if err := twin.CopyWeights(m, format); err != nil {
		return nil, nil, err
	}
	a, b := newTap(r.Dev, m), newTap(other, twin)
	m.ComputeWith(a)
	defer m.ComputeWith(r.Dev)
	twin.ComputeWith(b)
	v = &Walk{}
	failed, compared := make(chan error, 1), make(chan struct{})
	go func() {
		failed <- parallel.Run([]kernels.Device{other}, func(o *parallel.Rank) error {
			defer close(b.out)
			o.Dev = b
			logprobs = rescore(o, twin, batches)
			return nil
		})
	}()
	go func() {
		defer close(compared)
		v.compare(a.out, b.out)
	}()
	func() {
		defer close(a.out)
		rescore(&parallel.Rank{Dev: a, Stack: r.Stack, ID: r.ID, Size: r.Size}, m, batches)
	}()
	<-compared
	if err := <-failed; err != nil {
		return nil, nil, err
	}
	if i := slices.IndexFunc(logprobs, func(q float32) bool { return q-q != 0 }); i >= 0 {
		return nil, nil, fmt.Errorf("by the other definition a log-probability is %v: the weights do not bear it",
			logprobs[i])
	}
	v.finish()
	return v, logprobs, nil
}

func (v *Walk) write(w *tabwriter.Writer) {
	if v.First == nil {
		fmt.Fprintln(w, "no operation differs")
		return
	}
	p := v.First
	fmt.Fprintf(w, "first to differ: %s / %s, %d of %d elements, by up to %.3g, relative %.3g\n", p.Place, p.Op,
		p.Differ, p.Elements, p.Max, p.Relative)
	fmt.Fprintln(w, "differ\tmax\trelative\t  after\t")
	for _, p := range v.Growth {
		fmt.Fprintf(w, "%.2f%%\t%.3g\t%.3g\t  %s / %s\t\n", 100*float64(p.Differ)/float64(max(1, p.Elements)), p.Max,
			p.Relative, p.Place, p.Op)
	}
}
