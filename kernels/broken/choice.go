package broken

import (
	"math"
	"slices"

	"lockstep/kernels"
)

// Route breaks [kernels.BreakRouterTies] and [kernels.BreakGroupLimits]: it chooses other experts, with weights by the
// rules.
func (d *Device) Route(weights, experts, probs, logits kernels.Tensor, r kernels.Router) {
	d.operations.Route(weights, experts, probs, logits, r)
	limits := d.breaks(kernels.BreakGroupLimits, logits.Rows) && r.Groups > 0
	if !limits && !d.breaks(kernels.BreakRouterTies, logits.Rows) {
		return
	}
	p, chosen, w := d.load(probs), d.loadInts(experts), d.load(weights)
	var bias []float32
	if !r.Bias.IsNil() {
		bias = d.load(r.Bias)[0]
	}
	for t, row := range p {
		scores := slices.Clone(row)
		for i := range bias {
			scores[i] += bias[i]
		}
		if limits {
			copy(chosen[t], highest(scores, len(chosen[t]), false))
		} else {
			copy(chosen[t], d.routedByTies(scores, len(chosen[t]), r))
		}
		weigh(w[t], row, chosen[t], r)
	}
	d.storeInts(experts, chosen)
	d.store(weights, w)
}

// routedByTies is k experts by coarse scores, the higher of equal ones first. Groups are those of the rules.
func (d *Device) routedByTies(scores []float32, k int, r kernels.Router) []int32 {
	if r.Groups > 0 {
		n := len(scores) / r.Groups
		best := make([]float32, r.Groups)
		for g := range best {
			two := slices.Sorted(slices.Values(scores[g*n : (g+1)*n]))
			best[g] = two[n-1] + two[n-2]
		}
		kept := highest(best, r.TopGroups, false)
		for e := range scores {
			if !slices.Contains(kept, int32(e/n)) {
				scores[e] = float32(math.Inf(-1))
			}
		}
	}
	for e, v := range scores {
		scores[e] = coarse(v)
	}
	return highest(scores, k, true)
}

// highest is the indices of the k highest scores, descending; of equal ones the last comes first, or the first.
func highest(scores []float32, k int, last bool) []int32 {
	at := make([]int32, len(scores))
	for i := range at {
		at[i] = int32(i)
	}
	if last {
		slices.Reverse(at)
	}
	slices.SortStableFunc(at, func(a, b int32) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return 0
	})
	return at[:k]
}

// weigh is the weights of chosen experts by the rules, in slot order.
func weigh(w, p []float32, chosen []int32, r kernels.Router) {
	sum := float32(0)
	for i, e := range chosen {
		w[i] = p[e]
		sum += p[e]
	}
	for i := range w {
		if r.Norm {
			w[i] /= sum + r.Epsilon
		}
		w[i] *= r.Scale
	}
}

// SelectKeys breaks [kernels.BreakIndexScores] and [kernels.BreakKeyTies].
func (d *Device) SelectKeys(selected, q, weights kernels.Tensor, keys kernels.KV, l *kernels.Layout, x kernels.Index) {
	switch {
	case d.breaks(kernels.BreakIndexScores, l.Rows()):
		mem, release := d.scratch()
		defer release()
		rough, rows := mem.New(weights.DType, weights.Rows, weights.Cols), d.load(weights)
		for _, row := range rows {
			for h, v := range row {
				row[h] = coarse(v)
			}
		}
		d.store(rough, rows)
		d.operations.SelectKeys(selected, q, rough, keys, l, x)
	case d.breaks(kernels.BreakKeyTies, l.Rows()):
		d.operations.SelectKeys(selected, q, weights, keys, l, x)
		d.selectByTies(selected, q, weights, keys, l, x)
	default:
		d.operations.SelectKeys(selected, q, weights, keys, l, x)
	}
}

// selectByTies writes the lists of rows that have more keys than a list holds: by coarse scores, the last of equal ones
// first.
func (d *Device) selectByTies(selected, q, weights kernels.Tensor, keys kernels.KV, l *kernels.Layout,
	x kernels.Index) {
	mem, release := d.scratch()
	defer release()
	lists, queries, ws := d.loadInts(selected), d.load(q), d.load(weights)
	for _, s := range l.Spans {
		k := keys.K.RowRange(s.Row, min(s.Row+s.Rows, keys.K.Rows))
		if keys.PageRows > 0 {
			k = d.gathered(mem, keys, cacheRows(keys, s, 0, s.Pos+s.Rows)).K
		}
		rows := d.load(k)
		for i := range s.Rows {
			if seen := s.Pos + i + 1; seen > x.TopK {
				scores := indexScores(queries[s.Row+i], ws[s.Row+i], rows[:seen], x)
				chosen := highest(scores, x.TopK, true)
				slices.Sort(chosen)
				copy(lists[s.Row+i], chosen)
			}
		}
	}
	d.storeInts(selected, lists)
}

// indexScores are those of a row's keys, to four significant bits.
func indexScores(q, weights []float32, keys [][]float32, x kernels.Index) []float32 {
	scores := make([]float32, len(keys))
	for j, k := range keys {
		for h, w := range weights {
			dot := float32(0)
			for i, v := range k {
				dot += float32(q[h*x.Dim+i] * v)
			}
			scores[j] += float32(w * max(float32(dot*float32(x.Scale)), 0))
		}
		scores[j] = coarse(scores[j])
	}
	return scores
}
