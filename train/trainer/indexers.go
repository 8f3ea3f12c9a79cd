package trainer

import (
	"lockstep/model"
	"lockstep/optim"
)

// trained lists what the optimizer updates, in the order of the graph: the model's own weights, and those of indexers
// that are trained. Each part is clipped by its own norm, so that neither loss slows the other's updates.
func trained(m *model.Model) (own, indexers []optim.Weights) {
	of := m.IndexerParams()
	var parts [2][]*model.Shard
	for _, s := range m.Shards {
		if of[s.Param] {
			parts[1] = append(parts[1], s)
		} else {
			parts[0] = append(parts[0], s)
		}
	}
	return weights(m, parts[0]), weights(m, parts[1])
}

// diverge adds the divergence of each row to a sum, as the mean over the indexers, in the order of rows.
func (m *MicroBatch) diverge(sum *float64) {
	if m.indexers == nil {
		return
	}
	kl := m.indexers.KL
	for i := range kl.Cols {
		row := 0.0
		for n := range kl.Rows {
			row += float64(m.kl[n*kl.Cols+i])
		}
		*sum += row / float64(kl.Rows)
	}
}
