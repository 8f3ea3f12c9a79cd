package trainer

import (
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// trained lists what the optimizer updates, in the order of the graph: the model's own weights, and those of indexers
// that are trained. Each part is clipped by its own norm, so that neither loss slows the other's updates.
func (t *Trainer) trained() (own, indexers []optim.Weights) {
	of := t.Model.IndexerParams()
	var parts [2][]*model.Param
	for _, p := range t.Model.Trained() {
		if of[p] {
			parts[1] = append(parts[1], p)
		} else {
			parts[0] = append(parts[0], p)
		}
	}
	return weights(parts[0]), weights(parts[1])
}

// diverge adds the divergence of each row to a sum, as the mean over the indexers, in the order of rows.
func (m MicroBatch) diverge(r *parallel.Rank, sum *float64) {
	if m.indexers == nil {
		return
	}
	kl := m.indexers.KL
	values := parallel.Download[float32](r, kl)
	for i := range kl.Cols {
		row := 0.0
		for n := range kl.Rows {
			row += float64(values[n*kl.Cols+i])
		}
		*sum += row / float64(kl.Rows)
	}
}
