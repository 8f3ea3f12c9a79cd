//go:build cuda

package cuda

import "lockstep/kernels"

// ReLU2: out = round(max(x, 0)^2), both [R, n].
func (d *Device) ReLU2(out, x kernels.Tensor) {
	d.launch("relu2"+suffix(x), pieces(x.Rows, x.Cols), elementThreads, 0, out, x, x.Rows, x.Cols, out.Stride, x.Stride)
}

// ReLU2Backward: dx = round(dout*(2*max(x, 0))), all [R, n]. dx may be x.
func (d *Device) ReLU2Backward(dx, dout, x kernels.Tensor) {
	d.launch("relu2_backward"+suffix(x), pieces(x.Rows, x.Cols), elementThreads, 0, dx, dout, x, x.Rows, x.Cols,
		dx.Stride, dout.Stride, x.Stride)
}
