package cpu

import (
	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// softmaxBlock is softmaxBlockGo, in one pass over the scores where the machine has AVX-512 and exp2 is the polynomial.
func (op *attention) softmaxBlock(t queryTile, w *attentionScratch, scores gemm.View, lo, hi int) {
	rows := (t.to - t.from) * op.group
	w.decay, w.seen = sized(w.decay, rows), sized(w.seen, rows)
	if !op.d.softmax512() {
		op.softmaxBlockGo(t, w, scores, lo, hi)
		return
	}
	for i := range t.to - t.from {
		from, to := op.visible(t.from+i, lo, hi)
		seen := keyBits(to) &^ keyBits(from)
		for g := range op.group {
			w.seen[i*op.group+g] = seen
		}
	}
	s := &w.split
	softmaxBlock512(&scores.X[0], scores.RS, rows, &w.seen[0], keyBits(hi-lo), &s.m[0], &s.l[0], &w.decay[0],
		op.c, op.q.DType == kernels.BF16, &kernels.Exp2Coeffs[0])
}

// softmax512 reports whether the loops of softmax_amd64.s can be used: they compute exp2 by the polynomial only. The
// loops of vec have both modes.
func (d *Device) softmax512() bool { return d.isa == AVX512 && d.def.Exp2 == kernels.Exp2Poly }

// keyBits has one bit for each of the first n keys of a block of 64.
func keyBits(n int) uint64 { return 1<<uint(n) - 1 }

// gradients is gradientRow, in one pass where the machine has AVX-512.
func (op *attentionGrad) gradients(p, ds []float32, lse, sum float32) {
	if !op.d.softmax512() {
		op.gradientRow(p, ds, lse, sum)
		return
	}
	attentionGrad512(&p[0], &ds[0], len(p), op.c, lse, sum, float32(op.shape.Scale), op.q.DType == kernels.BF16,
		&kernels.Exp2Coeffs[0])
}

// softmaxBlock512 is one step of the online softmax (see Attention) for rows of dots over one block of 64 keys, row r
// at s[r*ld]: columns in seen[r] become p, the other columns of width +0; m, l and a are the rows' maximum, sum and
// decay. The bits of seen and width are columns. coeffs is kernels.Exp2Coeffs.
//
//go:noescape
func softmaxBlock512(s *float32, ld, rows int, seen *uint64, width uint64, m, l, a *float32, c float32, bf16 bool,
	coeffs *float32)

// attentionGrad512 replaces dot(q, k) and dot(dout, v) of one query and n visible keys by p and ds of
// AttentionBackward.
//
//go:noescape
func attentionGrad512(p, ds *float32, n int, c, lse, sum, scale float32, bf16 bool, coeffs *float32)
