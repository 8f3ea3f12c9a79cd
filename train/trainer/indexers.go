package trainer

import (
	"lockstep/model"
)

// trained lists what the optimizer updates, in the order of the graph: the model's own weights, and those of indexers
// that are trained. Each part is clipped by its own norm, so that neither loss slows the other's updates.
func trained(m *model.Model) (own, indexers []*model.Shard) {
	of := m.IndexerParams()
	for _, s := range m.Shards {
		if of[s.Param] {
			indexers = append(indexers, s)
		} else {
			own = append(own, s)
		}
	}
	return own, indexers
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
