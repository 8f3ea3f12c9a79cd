package cpu

import (
	"fmt"
	"math"

	"lockstep/kernels"
)

// sumBlock is the number of consecutive elements of one inner sum of SumSquares.
const sumBlock = 4096

// SumSquares: out[e] = tree over blocks of 4096 consecutive elements of group e of t of tree(v*v) of the block; out F32
// [1, Groups], t F32 and contiguous; and so of others.
func (d *Device) SumSquares(out, t kernels.Tensor, then ...kernels.Squares) {
	for _, of := range append([]kernels.Squares{{Out: out, T: t}}, then...) {
		d.sumSquares(of.Out, of.T)
	}
}

func (d *Device) sumSquares(out, t kernels.Tensor) {
	const op = "sum of squares"
	v, n := vector(op, "t", t, t.Len()), t.Rows*t.Cols
	each := (n + sumBlock - 1) / sumBlock // blocks of a group
	blocks := make([]float32, t.Groups*each)
	d.pool.each(len(blocks), 8, func(_, from, to int) {
		for b := from; b < to; b++ {
			group := v[b/each*n : (b/each+1)*n]
			x := group[b%each*sumBlock : min((b%each+1)*sumBlock, n)]
			blocks[b] = d.vec.TreeDot(x, x)
		}
	})
	for e, o := 0, vector(op, "out", out, t.Groups); e < t.Groups; e++ {
		o[e] = d.vec.Tree(blocks[e*each : (e+1)*each])
	}
}

// ClipScale: out F32 [1, 2] is the norm of gradients times scale whose parts' sums of squares are given, and the factor
// that scales gradients and clips them to clip.
func (d *Device) ClipScale(out, sums kernels.Tensor, scale, clip float64) {
	const op = "clip scale"
	o, total := vector(op, "out", out, 2), 0.0
	for _, s := range vector(op, "sums", sums, sums.Len()) {
		total += float64(s)
	}
	norm, factor := float64(scale*math.Sqrt(total)), scale
	switch {
	case math.IsNaN(norm) || math.IsInf(norm, 0):
		factor = math.NaN()
	case clip > 0 && norm > clip:
		factor = float64(scale*clip) / (norm + 1e-6)
	}
	o[0], o[1] = float32(norm), float32(factor)
}

// AdamW is one step of decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101), as kernels.Device states it.
// master, m, v and grad are F32 and contiguous; w, contiguous, receives master rounded to storage and may be master.
// grad is cleared. And so of others.
func (d *Device) AdamW(w, master, m, v, grad, factor kernels.Tensor, s kernels.AdamW, then ...kernels.Moments) {
	f := vector("adamw", "factor", factor, 1)[0]
	if f != f {
		return
	}
	for _, of := range append([]kernels.Moments{{W: w, Master: master, M: m, V: v, Grad: grad}}, then...) {
		d.adamW(of, f, s)
	}
}

func (d *Device) adamW(of kernels.Moments, factor float32, s kernels.AdamW) {
	const op = "adamw"
	w, n := of.W, of.Master.Len()
	if w.Len() != n || !w.Contiguous() {
		panic(fmt.Sprintf("cpu: adamw: w is %s, master %s", w, of.Master))
	}
	master, m, v, g := vector(op, "master", of.Master, n), vector(op, "m", of.M, n), vector(op, "v", of.V, n),
		vector(op, "grad", of.Grad, n)
	d.pool.each(n, rowWork, func(_, from, to int) {
		d.vec.AdamW(master[from:to], m[from:to], v[from:to], g[from:to], factor, s)
		if w.Data != of.Master.Data {
			d.copyPart(w, of.Master, from, from, to-from)
		}
	})
}
