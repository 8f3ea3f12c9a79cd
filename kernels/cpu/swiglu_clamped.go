package cpu

import "lockstep/kernels"

// ClampedSwiGLU: with g = min(gu[r,i], Limit), u = min(max(gu[r,I+i], -Limit), Limit): out[r,i] =
// round((g*sigm(Alpha*g))*(u+1)); gu [R, 2I], out [R, I] (the experts of gpt-oss).
func (d *Device) ClampedSwiGLU(out, gu kernels.Tensor, c kernels.Clamp) {
	d.gated("clamped swiglu", out, gu, func(out, g, u []float32) { d.vec.ClampedSwiGLU(out, g, u, c) })
}

// ClampedSwiGLUBackward, with s = sigm(Alpha*g): du = round(dout*(g*s)), dg = round((dout*(u+1))*(s*(1 +
// (Alpha*g)*(1-s)))), each 0 where its clamp took effect. dgu, gu [R, 2I]; dout [R, I]. dgu may be gu.
func (d *Device) ClampedSwiGLUBackward(dgu, dout, gu kernels.Tensor, c kernels.Clamp) {
	d.gatedBackward("clamped swiglu backward", dgu, dout, gu, func(dg, du, dout, g, u []float32) {
		d.vec.ClampedSwiGLUGrad(dg, du, dout, g, u, c)
	})
}
