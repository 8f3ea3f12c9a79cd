package serve

import (
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// TokenLogProb is a token with its log-probability, the one that it would have been recorded with if it had been
// sampled.
type TokenLogProb struct {
	ID      int32
	LogProb float32
}

// addTopLogProbs appends to each ready sequence that asks for them the most likely tokens of its row.
func (e *Engine) addTopLogProbs(ready []*sequence, d sampled) {
	var stats []float32
	for i, s := range ready {
		if s.req.TopLogProbs == 0 || !s.wantsToken() {
			continue
		}
		if stats == nil {
			stats = parallel.Download[float32](e.r, d.stats)
		}
		row := parallel.Download[float32](e.r, d.logits.RowRange(i, i+1))
		s.result.TopLogProbs = append(s.result.TopLogProbs, topLogProbs(row, s.req.TopLogProbs,
			kernels.Inverse(s.req.Temperature), stats[2*i], stats[2*i+1]))
	}
}

// topLogProbs are the n most likely tokens of a row of logits [V], with the log-probabilities that LogProb has for
// them, of whose stats m and sum are a row.
func topLogProbs(row []float32, n int, inv, m, sum float32) (list []TokenLogProb) {
	for _, id := range largest(row, n) {
		list = append(list, TokenLogProb{id, (float32(row[id]*inv) - m) - kernels.Ln(sum)})
	}
	return list
}

// largest lists the indices of the n largest values of x in descending order. Equal values keep their order.
func largest(x []float32, n int) []int32 {
	var best []int32
	if n == 0 {
		return nil
	}
	for i, v := range x {
		if len(best) == n && v <= x[best[n-1]] {
			continue
		}
		at := len(best)
		for at > 0 && v > x[best[at-1]] {
			at--
		}
		best = slices.Insert(best, at, int32(i))
		best = best[:min(len(best), n)]
	}
	return best
}
