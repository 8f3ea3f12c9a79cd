//go:build !amd64

package cpu

import "lockstep/kernels/cpu/gemm"

func (op *attention) softmaxBlock(t queryTile, w *attentionScratch, scores gemm.View, lo, hi int) {
	w.decay = sized(w.decay, (t.to-t.from)*op.group)
	op.softmaxBlockGo(t, w, scores, lo, hi)
}

func (op *attentionGrad) gradients(p, ds []float32, lse, sum float32) {
	op.gradientRow(p, ds, lse, sum)
}
