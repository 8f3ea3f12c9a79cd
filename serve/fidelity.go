package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"text/tabwriter"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/model/checkpoint"
	"lockstep/parallel"
)

// FidelityOptions configure MeasureFidelity.
type FidelityOptions struct {
	Tokens  int    // drawn at random, each of which has a next token's distribution
	Seed    uint64 // of the tokens
	Against []Alternative
	// Open opens a device that computes by a definition. MeasureFidelity closes it.
	Open func(def kernels.Definition) (kernels.Device, error)
}

// Fidelity says how far distributions of the next token by other definitions are from those by a model's own. Logits of
// both are multiplied by one factor, with which those of the model's own definition have a standard deviation of
// fidelityDeviation: a network with random weights is as sharp as a trained one then.
type Fidelity struct {
	Definition string        `json:"definition"` // digest
	Tokens     int           `json:"tokens"`
	Vocab      int           `json:"vocab"`
	Deviation  float64       `json:"standard_deviation"` // of all logits by the model's own definition
	Factor     float64       `json:"factor"`             // of all logits
	Rows       []FidelityRow `json:"against"`
}

// FidelityRow is that of an alternative p, against q of the model's own definition.
type FidelityRow struct {
	Setting    string  `json:"setting"`
	Definition string  `json:"definition"` // digest
	KL         float64 `json:"kl"`         // mean over tokens of (KL(p||q) + KL(q||p))/2 in nats
	Max        float64 `json:"max_kl"`     // of a token
	Argmax     float64 `json:"argmax"`     // fraction of tokens whose most likely next token is another
}

const (
	fidelityDeviation = 2.0
	fidelityPack      = 1024 // most rows of a pack, which is one sequence
	fidelityChunk     = 192  // rows of logits that are in memory at once, of either definition
)

// MeasureFidelity computes the next token's distribution over the whole vocabulary at drawn tokens, by the model's own
// definition and by each alternative, and compares them in float64. The tokens pass the model once for the factor, and
// once more for each alternative, which has a device and rounded weights of its own meanwhile.
func MeasureFidelity(ctx context.Context, s Ranks, o FidelityOptions) (*Fidelity, error) {
	switch {
	case o.Tokens < 1 || o.Tokens > mostTokens:
		return nil, fmt.Errorf("%d tokens: want 1 to %d", o.Tokens, mostTokens)
	case len(o.Against) == 0:
		return nil, errors.New("nothing to compare with: give at least one other definition")
	case len(s.Replicas) > 1:
		return nil, fmt.Errorf("%d ranks: distributions are compared on one", len(s.Replicas))
	}
	f := &Fidelity{Definition: s.Rank.Dev.Definition().Digest(), Tokens: o.Tokens, Vocab: s.Model.Vocab}
	packs := drawPacks(s.Model, o.Tokens, o.Seed)
	if err := f.measureDeviation(ctx, s, packs); err != nil {
		return nil, err
	}
	for _, a := range o.Against {
		row, err := f.against(ctx, s, a, packs, o.Open)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.Text, err)
		}
		f.Rows = append(f.Rows, row)
	}
	return f, nil
}

// drawPacks draws sequences of as many tokens together.
func drawPacks(m *model.Model, tokens int, seed uint64) (packs [][]int32) {
	rng := rand.New(rand.NewPCG(seed, 0))
	for tokens > 0 {
		ids := make([]int32, min(tokens, m.MaxLength, fidelityPack))
		for i := range ids {
			ids[i] = rng.Int32N(int32(m.Vocab))
		}
		packs = append(packs, ids)
		tokens -= len(ids)
	}
	return packs
}

// eachLogits visits the logits of all tokens, [rows, V] of some rows at a time. It ends with the visit's first error.
func eachLogits(r *parallel.Rank, m *model.Model, packs [][]int32, visit func(logits []float32) error) error {
	for _, ids := range packs {
		if err := packLogits(r, m, ids, visit); err != nil {
			return err
		}
	}
	return nil
}

func packLogits(r *parallel.Rank, m *model.Model, ids []int32, visit func(logits []float32) error) error {
	defer r.Stack.Release(r.Stack.Mark())
	b, _ := singleSequence(r, ids)
	x := m.Forward(r, b, nil)
	for from := 0; from < len(ids); from += fidelityChunk {
		mark := r.Stack.Mark()
		logits := parallel.Download[float32](r, m.Head.Logits(r, x.RowRange(from, min(from+fidelityChunk, len(ids)))))
		r.Stack.Release(mark)
		if err := visit(logits); err != nil {
			return err
		}
	}
	return nil
}

// measureDeviation finds the factor of the logits.
func (f *Fidelity) measureDeviation(ctx context.Context, s Ranks, packs [][]int32) error {
	var sum, squares float64
	if err := eachLogits(s.Rank, s.Model, packs, func(logits []float32) error {
		rows := len(logits) / f.Vocab
		sums := make([][2]float64, rows)
		eachRow(rows, func(i int) {
			for _, x := range logits[i*f.Vocab:][:f.Vocab] {
				sums[i][0] += float64(x)
				sums[i][1] += float64(x) * float64(x)
			}
		})
		for _, of := range sums {
			sum, squares = sum+of[0], squares+of[1]
		}
		return ctx.Err()
	}); err != nil {
		return err
	}
	n := float64(f.Tokens) * float64(f.Vocab)
	f.Deviation = math.Sqrt(squares/n - float64(sum/n)*float64(sum/n))
	if f.Factor = fidelityDeviation / f.Deviation; !(f.Factor > 0) || math.IsInf(f.Factor, 1) {
		return fmt.Errorf("the logits have a standard deviation of %v: check the weights", f.Deviation)
	}
	return nil
}

func eachRow(rows int, body func(i int)) {
	checkpoint.InParallel(rows, 1, func(from, to int) {
		for i := from; i < to; i++ {
			body(i)
		}
	})
}

// against compares the model's own definition with an alternative.
func (f *Fidelity) against(ctx context.Context, s Ranks, a Alternative, packs [][]int32,
	open func(kernels.Definition) (kernels.Device, error)) (row FidelityRow, err error) {
	dev, err := open(a.Definition)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	m, err := s.Model.EmptyCopy(dev, s.Model.DType, a.Weights)
	if err == nil {
		err = m.CopyWeights(s.Model, a.Weights)
	}
	if err != nil {
		return row, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	other, failed := make(chan []float32), make(chan error, 1)
	go func() {
		defer close(other)
		failed <- parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
			return eachLogits(r, m, packs, func(logits []float32) error {
				select {
				case other <- logits:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	}()
	sum := fidelitySum{vocab: f.Vocab, factor: f.Factor}
	err = eachLogits(s.Rank, s.Model, packs, func(logits []float32) error {
		if q, ok := <-other; ok {
			return sum.add(logits, q)
		}
		return errOtherEnded
	})
	cancel() // where this side has failed, the other ends too
	if otherErr := <-failed; err == nil || errors.Is(err, errOtherEnded) {
		err = otherErr
	}
	if err == nil && sum.tokens != f.Tokens {
		err = fmt.Errorf("%d of %d tokens were compared", sum.tokens, f.Tokens)
	}
	n := float64(sum.tokens)
	return FidelityRow{a.Text, a.Definition.Digest(), sum.kl / n, sum.max, float64(sum.argmax) / n}, err
}

var errOtherEnded = errors.New("the other forward has ended")

// fidelitySum adds what rows of logits differ by.
type fidelitySum struct {
	vocab          int
	factor         float64
	tokens, argmax int // argmax: tokens with another largest logit
	kl, max        float64
}

// add compares logits [rows, V] by two definitions.
func (s *fidelitySum) add(p, q []float32) error {
	rows := len(p) / s.vocab
	kl, same := make([]float64, rows), make([]bool, rows)
	eachRow(rows, func(i int) {
		a, b := p[i*s.vocab:][:s.vocab], q[i*s.vocab:][:s.vocab]
		kl[i], same[i] = symmetricKL(a, b, s.factor), argmax(a) == argmax(b)
	})
	for i, d := range kl {
		if d-d != 0 {
			return errors.New("a logit is not finite: these weights overflow under it")
		}
		s.kl, s.max = s.kl+d, max(s.max, d)
		if !same[i] {
			s.argmax++
		}
	}
	s.tokens += rows
	return nil
}

// symmetricKL is (KL(p||q) + KL(q||p))/2 in nats of the softmax of two rows of logits times a factor, in float64: the
// sum of (p-q)(log p - log q)/2, none of whose terms is negative.
func symmetricKL(p, q []float32, factor float64) float64 {
	lp, lq := logSoftmax(p, factor), logSoftmax(q, factor)
	sum := 0.0
	for i := range lp {
		sum += (math.Exp(lp[i]) - math.Exp(lq[i])) * (lp[i] - lq[i])
	}
	return sum / 2
}

// argmax is the first of the largest.
func argmax(x []float32) (at int) {
	for i, v := range x {
		if v > x[at] {
			at = i
		}
	}
	return at
}

// JSON is the table as JSON.
func (f *Fidelity) JSON() ([]byte, error) { return json.MarshalIndent(f, "", "  ") }

func (f *Fidelity) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "next token at %d drawn tokens, %d logits each, by definition %s and by others\n", f.Tokens,
		f.Vocab, f.Definition[:12])
	fmt.Fprintf(&b, "logits have a standard deviation of %.4g; all are multiplied by %.4g, which makes it %g\n",
		f.Deviation, f.Factor, fidelityDeviation)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "symmetric KL\tlargest\tother argmax\t  setting\t")
	for _, r := range f.Rows {
		fmt.Fprintf(w, "%.4g\t%.4g\t%.2f%%\t  %s\t\n", r.KL, r.Max, 100*r.Argmax, r.Setting)
	}
	if err := w.Flush(); err != nil {
		panic(err) // a strings.Builder does not fail
	}
	return b.String()
}
