package cpu

import (
	"fmt"
	"math"

	"lockstep/kernels"
)

// sumBlock is the number of consecutive elements of one inner sum of SumSquares.
const sumBlock = 4096

// SumSquares: out[e] = tree over blocks of 4096 consecutive elements of group e of t of tree(v*v) of the block; out F32
// [1, Groups], t F32 and contiguous.
func (d *Device) SumSquares(out, t kernels.Tensor) {
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
// grad is cleared.
func (d *Device) AdamW(w, master, m, v, grad, factor kernels.Tensor, s kernels.AdamW) {
	const op = "adamw"
	n := master.Len()
	if w.Len() != n || !w.Contiguous() {
		panic(fmt.Sprintf("cpu: adamw: w is %s, master %s", w, master))
	}
	ms, m1, v1, g := vector(op, "master", master, n), vector(op, "m", m, n), vector(op, "v", v, n),
		vector(op, "grad", grad, n)
	f := vector(op, "factor", factor, 1)[0]
	if f != f {
		return
	}
	d.pool.each(n, rowWork, func(_, from, to int) {
		d.vec.AdamW(ms[from:to], m1[from:to], v1[from:to], g[from:to], f, s)
		if w.Data != master.Data {
			d.copyPart(w, master, from, from, to-from)
		}
	})
}
