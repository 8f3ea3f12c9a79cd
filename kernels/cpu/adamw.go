package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// sumBlock is the number of consecutive elements of one inner sum of SumSquares.
const sumBlock = 4096

// SumSquares: out[0] = tree over blocks of 4096 consecutive elements of t of tree(v*v) of the block; out F32 [1, 1], t F32 and contiguous.
func (d *Device) SumSquares(out, t kernels.Tensor) {
	v := vector("sum of squares", "t", t, t.Len())
	blocks := make([]float32, (len(v)+sumBlock-1)/sumBlock)
	d.pool.each(len(blocks), 8, func(_, from, to int) {
		for b := from; b < to; b++ {
			x := v[b*sumBlock : min((b+1)*sumBlock, len(v))]
			blocks[b] = d.vec.TreeDot(x, x)
		}
	})
	vector("sum of squares", "out", out, 1)[0] = d.vec.Tree(blocks)
}

// AdamW is one step of decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101), as kernels.Device states it. master, m, v and grad are F32 and
// contiguous; w, contiguous, receives master rounded to storage and may be master. grad is cleared.
func (d *Device) AdamW(w, master, m, v, grad kernels.Tensor, s kernels.AdamW) {
	const op = "adamw"
	n := master.Len()
	if w.Len() != n || !w.Contiguous() {
		panic(fmt.Sprintf("cpu: adamw: w is %s, master %s", w, master))
	}
	ms, m1, v1, g := vector(op, "master", master, n), vector(op, "m", m, n), vector(op, "v", v, n), vector(op, "grad", grad, n)
	d.pool.each(n, rowWork, func(_, from, to int) {
		d.vec.AdamW(ms[from:to], m1[from:to], v1[from:to], g[from:to], s)
		if w.Data != master.Data {
			d.copyPart(w, master, from, from, to-from)
		}
	})
}
