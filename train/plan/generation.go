package plan

import (
	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/setup"
)

// Generation is the memory that a shape's model takes of a rank's device where it only generates: weights, pages and
// states of an engine, and the activations of its largest step. It reserves the rank's stack and workspace by that.
func Generation(r *parallel.Rank, s *configs.Shape, options serve.Options) (n Memory, err error) {
	planned := metaRank(r.Dev, 0, 1)
	m, _, err := setup.OpenModel([]kernels.Device{planned.Dev}, s)
	if err != nil {
		return n, err
	}
	n.Weights = handedOut(planned)
	e, err := serve.NewEngine(planned, m, kernels.NewArena(planned.Dev), options)
	if err != nil {
		return n, err
	}
	n.Cache = handedOut(planned) - n.Weights
	planned.ClearStacks(meta.Endless)
	e.PlanLargestStep(false)
	n.Activations = activations(planned)
	Reserve(r, planned)
	return n, nil
}
