//go:build cuda

package attention

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// JoinHeads: head h of out [T, heads*(n+r)] is (own of h, shared); own [T, heads*n], shared [T, r].
func (d *Ops) JoinHeads(out, own, shared kernels.Tensor) {
	r := shared.Cols
	heads := (out.Cols - own.Cols) / r
	launchJoinHeads(d.Context, driver.Suffix(out), driver.ElementGrid(out.Rows, out.Cols), driver.ElementThreads, 0,
		out, own, shared, out.Rows, heads, own.Cols/heads, r, out.Stride, own.Stride, shared.Stride)
}

// JoinHeadsBackward: dOwn [T, heads*n] takes its columns of dout; dshared [T, r] is the sum over heads of the others.
func (d *Ops) JoinHeadsBackward(dOwn, dshared, dout kernels.Tensor) {
	r := dshared.Cols
	heads := (dout.Cols - dOwn.Cols) / r
	launchJoinHeadsBackward(d.Context, driver.Suffix(dout), driver.ElementGrid(dout.Rows, driver.Blocks(dOwn.Cols,
		8)*8+r), driver.ElementThreads, 0, dOwn, dshared, dout, dout.Rows, heads, dOwn.Cols/heads, r, dOwn.Stride,
		dshared.Stride, dout.Stride)
}
