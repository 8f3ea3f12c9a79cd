//go:build cuda

package cuda

import "lockstep/kernels"

// ClampedSwiGLU is kernels.Device's, of gu [R, 2I] to out [R, I].
func (d *Device) ClampedSwiGLU(out, gu kernels.Tensor, c kernels.Clamp) {
	d.launch("clamped_swiglu"+suffix(out), pieces(out.Rows, out.Cols), elementThreads, 0, out, gu, out.Rows, out.Cols,
		out.Stride, gu.Stride, c.Alpha, c.Limit)
}

// ClampedSwiGLUBackward writes dgu [R, 2I], which may be gu, from dout [R, I].
func (d *Device) ClampedSwiGLUBackward(dgu, dout, gu kernels.Tensor, c kernels.Clamp) {
	d.launch("clamped_swiglu_backward"+suffix(dout), pieces(dout.Rows, dout.Cols), elementThreads, 0, dgu, dout, gu,
		dout.Rows, dout.Cols, dgu.Stride, dout.Stride,
		gu.Stride, c.Alpha, c.Limit)
}
