package serve

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Ranks is a model on the ranks of a world, for inference. The goroutine of the first rank uses it.
type Ranks struct {
	World    *parallel.World // nil: there is one rank
	Rank     *parallel.Rank  // the first
	Model    *model.Model    // its replica
	Replicas model.Replicas  // by rank
}

// OneRank is a model on one rank.
func OneRank(r *parallel.Rank, m *model.Model) Ranks {
	return Ranks{Rank: r, Model: m, Replicas: model.Replicas{m}}
}

// Distribute copies the first rank's model to the others of a world, where there are others. w nil: there are none.
func Distribute(w *parallel.World, r *parallel.Rank, m *model.Model) (Ranks, error) {
	if w == nil {
		return OneRank(r, m), nil
	}
	replicas, err := model.Replicate(w, m)
	return Ranks{World: w, Rank: r, Model: m, Replicas: replicas}, err
}

// DeviceName names the device of each rank.
func (s Ranks) DeviceName() string {
	name := s.Rank.Dev.Name()
	if n := len(s.Replicas); n > 1 {
		return fmt.Sprintf("%d ranks, each %s", n, name)
	}
	return name
}

// OneRankReference is a copy of the model that has all weights on the first rank's device; nil: each rank has all of
// them already, or the device has no room for a copy and what it computes.
func (s Ranks) OneRankReference() (*model.Model, error) {
	if !s.Model.Cut() {
		return nil, nil
	}
	if d, ok := s.Rank.Dev.(kernels.Bounded); ok {
		if have := d.Available(); have > 0 && s.Model.Memory().Weights > have/4*3 {
			return nil, nil
		}
	}
	m, err := s.Model.EmptyCopy(s.Rank.Dev, s.Model.DType, model.Encode{})
	if err != nil {
		return nil, err
	}
	return m, m.CopyWeights(s.Model, model.Encode{})
}

// each runs body on every rank.
func (s Ranks) each(body func(r *parallel.Rank, m *model.Model) error) error {
	if s.World == nil {
		return body(s.Rank, s.Model)
	}
	return s.World.Run(func(r *parallel.Rank) error { return body(r, s.Replicas[r.ID]) })
}

// together tells whether every forward takes all ranks, because each has other experts.
func (s Ranks) together() bool { return len(s.Replicas) > 1 && s.Model.ExpertParallel() }

// deal runs forward for n items, the i-th on rank i mod their number. It runs the model's forward once.
func (s Ranks) deal(n int, forward func(r *parallel.Rank, m *model.Model, i int) error) error {
	ranks := len(s.Replicas)
	return s.each(func(r *parallel.Rank, m *model.Model) error {
		for first := 0; first < n; first += ranks {
			if i := first + r.ID; i < n {
				if err := forward(r, m, i); err != nil {
					return err
				}
			} else if s.together() {
				m.ServeForward(r)
			}
		}
		return nil
	})
}
