//go:build cuda

package rows

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// ClampedSwiGLU is kernels.Device's, of gu [R, 2I] to out [R, I].
func (d *Ops) ClampedSwiGLU(out, gu kernels.Tensor, c kernels.Clamp) {
	launchClampedSwiglu(d.Context, driver.Suffix(out), driver.ElementGrid(out.Rows, out.Cols), driver.ElementThreads, 0,
		out, gu, out.Rows, out.Cols, out.Stride, gu.Stride, c.Alpha, c.Limit)
}

// ClampedSwiGLUBackward writes dgu [R, 2I], which may be gu, from dout [R, I].
func (d *Ops) ClampedSwiGLUBackward(dgu, dout, gu kernels.Tensor, c kernels.Clamp) {
	launchClampedSwigluBackward(d.Context, driver.Suffix(dout), driver.ElementGrid(dout.Rows, dout.Cols),
		driver.ElementThreads, 0, dgu, dout, gu, dout.Rows, dout.Cols, dgu.Stride, dout.Stride, gu.Stride, c.Alpha,
		c.Limit)
}
