package train

import (
	"fmt"

	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// trained is what the optimizer updates, in the order of the graph: the model's own weights, and those of indexers that
// learn. Each part is clipped by its own norm, so that neither loss slows what the other moves.
func (t *trainer) trained() (own, indexers []optim.Weights) {
	of := t.m.IndexerParams()
	var parts [2][]*model.Param
	for _, p := range t.m.Trained() {
		if of[p] {
			parts[1] = append(parts[1], p)
		} else {
			parts[0] = append(parts[0], p)
		}
	}
	return weights(parts[0]), weights(parts[1])
}

// diverge adds the divergence of each row, the mean over the indexers, to a sum, in the order of rows.
func (m microBatch) diverge(r *parallel.Rank, sum *float64) {
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

// indexers records what indexers learned, if they do learn, and returns fields for the progress line.
func (j *job) indexers(rec *Record, res stepResult) (fields []string) {
	if j.t.m.Indexing == model.IndexersFrozen {
		return nil
	}
	rec.IndexerLoss, rec.IndexerNorm = Num(res.IndexerLoss), Num(res.IndexerNorm)
	return []string{fmt.Sprintf("indexer loss %.4f", res.IndexerLoss)}
}
