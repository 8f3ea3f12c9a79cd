package serve

import (
	"slices"

	"lockstep/parallel"
)

// TokenLogProb is a token with its log-probability, the one that it would have been recorded with if it had been
// sampled.
type TokenLogProb struct {
	ID      int32
	LogProb float32
}

// addTopLogProbs appends to each ready sequence that asks for them the most likely tokens of its row. Their
// log-probabilities come from the operation that gives those of sampled tokens.
func (e *Engine) addTopLogProbs(ready []*sequence, d sampled) {
	top, longest := make([][]int32, len(ready)), 0
	for i, s := range ready {
		if s.req.TopLogProbs > 0 {
			top[i] = largest(parallel.Download[float32](e.r, d.logits.RowRange(i, i+1)), s.req.TopLogProbs)
			longest = max(longest, s.req.TopLogProbs)
		}
	}
	if longest == 0 {
		return
	}
	lists := make([][]TokenLogProb, len(ready))
	for k := range longest {
		ids := make([]int32, len(ready))
		for i := range ready {
			if k < len(top[i]) {
				ids[i] = top[i][k]
			}
		}
		mark := e.r.Stack.Mark()
		logprobs := parallel.Download[float32](e.r, e.logProbs(d, parallel.Upload(e.r, ids)))
		e.r.Stack.Release(mark)
		for i := range ready {
			if k < len(top[i]) {
				lists[i] = append(lists[i], TokenLogProb{ids[i], logprobs[i]})
			}
		}
	}
	for i, s := range ready {
		if s.req.TopLogProbs > 0 {
			s.result.TopLogProbs = append(s.result.TopLogProbs, lists[i])
		}
	}
}

// largest lists the indices of the n largest values of x in descending order. Equal values keep their order.
func largest(x []float32, n int) []int32 {
	var best []int32
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
