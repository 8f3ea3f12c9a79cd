//go:build cuda

package moe

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Combine: out[t] = round(sum over slots k of weights[t,k]*y[rowOf[t,k]]); weights nil: of y alone.
func (d *Ops) Combine(out, y, weights, rowOf kernels.Tensor) {
	launchCombine(d.Context, driver.Suffix(out), driver.ElementGrid(out.Rows, out.Cols), driver.ElementThreads, 0, out,
		y, weights, rowOf, out.Rows, out.Cols, rowOf.Cols, out.Stride, y.Stride)
}

// CombineBackward: dy[row] = round(weights[t,k]*dout[t]) and dweights[t,k] = tree(dout[t]*y[row]) for row = rowOf[t,k].
func (d *Ops) CombineBackward(dy, dweights, dout, y, weights, rowOf kernels.Tensor) {
	launchCombineBackward(d.Context, driver.Suffix(dout), driver.WarpGrid(rowOf.Len()), driver.WarpThreads, 0, dy,
		dweights, dout, y, weights, rowOf, rowOf.Len(), dout.Cols, rowOf.Cols, dy.Stride, dout.Stride, y.Stride)
}
