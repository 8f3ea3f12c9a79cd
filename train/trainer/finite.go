package trainer

import (
	"errors"
	"fmt"
	"math"

	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// Finite returns an error that wraps [ErrNotFinite] and names the numbers where the loss or a norm is not finite.
func (r StepResult) Finite() error {
	if math.IsNaN(r.Norm) || math.IsInf(r.Norm, 0) || math.IsNaN(r.Loss) {
		return fmt.Errorf("loss %g, gradient norm %g, %w", r.Loss, r.Norm, ErrNotFinite)
	}
	if math.IsNaN(r.IndexerNorm) || math.IsInf(r.IndexerNorm, 0) {
		return fmt.Errorf("indexer loss %g, gradient norm %g of the indexers, %w", r.IndexerLoss, r.IndexerNorm,
			ErrNotFinite)
	}
	return nil
}

// ErrNotFinite is the error of a step whose loss or gradient is infinite or no number.
var ErrNotFinite = errors.New("not finite")

// FirstNotFinite returns the name of the first parameter, in the order of the graph, whose gradient is not finite, or
// "the loss" where all are.
func (t *Trainer) FirstNotFinite() (name string) {
	t.eachRank(func(r *parallel.Rank, m *model.Model) {
		first := "the loss"
		for i, s := range m.Shards {
			if s.Copies() == s.W.Groups { // of the weight whose first has been looked at
				continue
			}
			if n := optim.GradNorm(r, weights(m, m.Shards[i:i+1])); math.IsNaN(n) || math.IsInf(n, 0) {
				first = s.Param.Name
				break
			}
		}
		if r.ID == 0 {
			name = first
		}
	})
	return name
}
