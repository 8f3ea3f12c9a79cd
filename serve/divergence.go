package serve

import (
	"cmp"
	"slices"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Divergence measures how far an engine is from a training forward on some sequences.
type Divergence struct {
	// KL(training || rollout) over the whole vocabulary in nats, mean of a sequence's tokens, and of the sequences.
	KL         float64
	Logits     int // number of logits compared
	Mismatches int // of them, different bits
}

// Kept is the logits that the engine sampled a token by; see [Request.KeepLogits].
type Kept struct {
	Index       int     // of the request
	Before      []int32 // all tokens before it, of the prompt too
	Temperature float32
	Logits      []float32 // [V], as the head gives them
}

// keep takes the logits [n, V] of the ready sequences whose requests keep them to the host, before a token is appended.
func (e *Engine) keep(ready []*sequence, logits kernels.Tensor) {
	for i, s := range ready {
		if s.req.KeepLogits && s.wantsToken() {
			e.kept = append(e.kept, Kept{s.index, s.tokens, s.req.Temperature,
				parallel.Download[float32](e.r, logits.RowRange(i, i+1))})
		}
	}
}

// TakeKept returns what was kept since it was called before, by requests, and of a request in the order of tokens.
func (p *Replicas) TakeKept() (list []Kept) {
	for _, e := range p.engines {
		list, e.kept = append(list, e.kept...), nil
	}
	slices.SortStableFunc(list, func(a, b Kept) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(len(a.Before), len(b.Before)))
	})
	return list
}

// MeasureDivergence compares the logits by which tokens were sampled, as TakeKept lists them, with those of the
// training forward of m on rank r. The KL is that of the distributions at the requests' temperatures. The weights must
// be those that sampled.
func MeasureDivergence(r *parallel.Rank, m *model.Model, kept []Kept) (d Divergence) {
	sequences := 0
	for len(kept) > 0 {
		n := slices.IndexFunc(kept, func(k Kept) bool { return k.Index != kept[0].Index })
		if n < 0 {
			n = len(kept)
		}
		d.add(r, m, kept[:n])
		kept, sequences = kept[n:], sequences+1
	}
	d.KL /= float64(max(sequences, 1))
	return d
}

// add compares tokens of one sequence with the logits of its rows, of some rows at a time.
func (d *Divergence) add(r *parallel.Rank, m *model.Model, kept []Kept) {
	of, row := float64(len(kept)), 0
	_ = packLogits(r, m, kept[len(kept)-1].Before, func(logits []float32) error {
		for ; len(logits) > 0; logits = logits[m.Vocab:] {
			if row++; row == len(kept[0].Before) {
				d.addToken(logits[:m.Vocab], kept[0], of)
				kept = kept[1:]
			}
		}
		return nil // always
	})
}

// addToken compares the logits of one of so many tokens.
func (d *Divergence) addToken(want []float32, k Kept, of float64) {
	d.Logits += len(want)
	if bad := mismatches(k.Logits, want); bad > 0 {
		d.Mismatches += bad
		d.KL += divergence(want, k.Logits, kernels.Inverse(k.Temperature)) / of
	}
}
