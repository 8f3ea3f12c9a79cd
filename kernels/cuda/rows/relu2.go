//go:build cuda

package rows

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// ReLU2: out = round(max(x, 0)^2), both [R, n].
func (d *Ops) ReLU2(out, x kernels.Tensor) {
	launchRelu2(d.Context, driver.Suffix(x), driver.ElementGrid(x.Rows, x.Cols), driver.ElementThreads, 0, out, x,
		x.Rows, x.Cols, out.Stride, x.Stride)
}

// ReLU2Backward: dx = round(dout*(2*max(x, 0))), all [R, n]. dx may be x.
func (d *Ops) ReLU2Backward(dx, dout, x kernels.Tensor) {
	launchRelu2Backward(d.Context, driver.Suffix(x), driver.ElementGrid(x.Rows, x.Cols), driver.ElementThreads, 0, dx,
		dout, x, x.Rows, x.Cols, dx.Stride, dout.Stride, x.Stride)
}
