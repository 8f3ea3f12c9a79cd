package cpu

import (
	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// softmaxBlockGo is a step of the online softmax over a block of keys [lo, hi): it replaces the dots, a row for each
// (query, head) pair of a tile, by probabilities p, updates m and l, and writes the factors of o to w.decay.
func (op *attention) softmaxBlockGo(t queryTile, w *attentionScratch, scores gemm.View, lo, hi int) {
	vec, state := op.d.vec, &w.split
	for r := range w.decay {
		p := scores.X[r*scores.RS:][:hi-lo]
		from, to := op.visible(t.from+r/op.group, lo, hi)
		clear(p[:from])
		clear(p[to:])
		w.decay[r] = 0
		if from < to {
			vec.Scale(p[from:to], op.c)
			m := max(state.m[r], vec.Max(p[from:to]))
			w.decay[r], state.m[r] = state.m[r]-m, m
		}
	}
	vec.Exp2Sub(w.decay, w.decay, 1, 0)
	for r, a := range w.decay {
		from, to := op.visible(t.from+r/op.group, lo, hi)
		if from >= to {
			continue
		}
		p := scores.X[r*scores.RS:][:hi-lo]
		vec.Exp2Sub(p[from:to], p[from:to], 1, state.m[r])
		state.l[r] = float32(state.l[r]*a) + vec.Tree(p)
		if op.q.DType == kernels.BF16 {
			roundToBF16(p[from:to])
		}
	}
}

// gradientRow replaces dot(q, k) and dot(dout, v) of one query and its visible keys by p and ds of AttentionBackward.
func (op *attentionGrad) gradientRow(p, ds []float32, lse, sum float32) {
	scale := float32(op.shape.Scale)
	op.d.vec.Scale(p, op.c)
	op.d.vec.Exp2Sub(p, p, 1, lse)
	for j, x := range p {
		ds[j] = float32(float32(x*(ds[j]-sum)) * scale)
	}
	if op.q.DType == kernels.BF16 {
		roundToBF16(p)
		roundToBF16(ds)
	}
}
