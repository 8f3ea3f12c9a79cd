//go:build cuda

package rows

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// ReLU2: out = round(max(x, 0)^2), both [R, n].
func (d *Ops) ReLU2(out, x kernels.Tensor) {
	d.Launch("relu2"+driver.Suffix(x), driver.Pieces(x.Rows, x.Cols), driver.ElementThreads, 0, out, x, x.Rows, x.Cols,
		out.Stride, x.Stride)
}

// ReLU2Backward: dx = round(dout*(2*max(x, 0))), all [R, n]. dx may be x.
func (d *Ops) ReLU2Backward(dx, dout, x kernels.Tensor) {
	d.Launch("relu2_backward"+driver.Suffix(x), driver.Pieces(x.Rows, x.Cols), driver.ElementThreads, 0, dx, dout, x,
		x.Rows, x.Cols,
		dx.Stride, dout.Stride, x.Stride)
}
