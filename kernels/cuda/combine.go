//go:build cuda

package cuda

import "lockstep/kernels"

// Combine: out[t] = round(sum over slots k of weights[t,k]*y[rowOf[t,k]]); weights nil: of y alone.
func (d *Device) Combine(out, y, weights, rowOf kernels.Tensor) {
	d.launch("combine"+suffix(out), pieces(out.Rows, out.Cols), elementThreads, 0, out, y, weights, rowOf, out.Rows,
		out.Cols, rowOf.Cols, out.Stride, y.Stride)
}

// CombineBackward: dy[row] = round(weights[t,k]*dout[t]) and dweights[t,k] = tree(dout[t]*y[row]) for row = rowOf[t,k].
func (d *Device) CombineBackward(dy, dweights, dout, y, weights, rowOf kernels.Tensor) {
	d.launch("combine_backward"+suffix(dout), warps(rowOf.Len()), warpThreads, 0, dy, dweights, dout, y, weights, rowOf,
		rowOf.Len(), dout.Cols, rowOf.Cols,
		dy.Stride, dout.Stride, y.Stride)
}
