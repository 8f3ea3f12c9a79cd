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

// CombineBackward, of n pairs p = t*K + slot: with p = pair[i] and r = row[i], dy[r] = round(weights[p]*dout[t]) and
// dweights[i] = tree(dout[t]*y[r]); without pair p is i, without row r is i.
func (d *Ops) CombineBackward(dy, dweights, dout, y, weights, pair, row kernels.Tensor) {
	n := dweights.Len()
	launchCombineBackward(d.Context, driver.Suffix(dout), driver.WarpGrid(n), driver.WarpThreads, 0, dy, dweights, dout,
		y, weights, pair, row, n, dout.Cols, weights.Cols, dy.Stride, dout.Stride, y.Stride)
}
