//go:build cuda

package rows

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// SwiGLU: out[r,i] = round((g*sigm(g))*u) with g = gu[r,i], u = gu[r,I+i]; gu [R, 2I], out [R, I].
func (d *Ops) SwiGLU(out, gu kernels.Tensor) {
	launchSwiglu(d.Context, driver.Suffix(gu), driver.ElementGrid(out.Rows, out.Cols), driver.ElementThreads, 0, out,
		gu, out.Rows, out.Cols, out.Stride, gu.Stride)
}

// SwiGLUBackward: dgu, gu [R, 2I]; dout [R, I]. dgu may be gu.
func (d *Ops) SwiGLUBackward(dgu, dout, gu kernels.Tensor) {
	launchSwigluBackward(d.Context, driver.Suffix(gu), driver.ElementGrid(dout.Rows, dout.Cols), driver.ElementThreads,
		0, dgu, dout, gu, dout.Rows, dout.Cols, dgu.Stride, dout.Stride, gu.Stride)
}
