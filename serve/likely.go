package serve

import (
	"slices"

	"lockstep/parallel"
)

// Likely is a token that might have been drawn, with its log-probability, which is what it would have been recorded
// with.
type Likely struct {
	ID      int32
	LogProb float32
}

// list appends to each ready sequence that asks for it the likeliest tokens of its row, by the function that gives a
// drawn token its log-probability.
func (e *Engine) list(ready []*sequence, d draw) {
	top, most := make([][]int32, len(ready)), 0
	for i, s := range ready {
		if s.req.Top > 0 {
			top[i] = largest(parallel.Download[float32](e.r, d.logits.RowRange(i, i+1)), s.req.Top)
			most = max(most, s.req.Top)
		}
	}
	if most == 0 {
		return
	}
	lists := make([][]Likely, len(ready))
	for k := range most {
		ids := make([]int32, len(ready))
		for i := range ready {
			if k < len(top[i]) {
				ids[i] = top[i][k]
			}
		}
		mark := e.r.Stack.Mark()
		logprobs := parallel.Download[float32](e.r, e.logprob(d, parallel.Upload(e.r, ids)))
		e.r.Stack.Release(mark)
		for i := range ready {
			if k < len(top[i]) {
				lists[i] = append(lists[i], Likely{ids[i], logprobs[i]})
			}
		}
	}
	for i, s := range ready {
		if s.req.Top > 0 {
			s.result.Likely = append(s.result.Likely, lists[i])
		}
	}
}

// largest is the columns of the n largest of x, the larger first, equal ones in order.
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
