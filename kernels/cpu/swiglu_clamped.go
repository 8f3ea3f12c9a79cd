package cpu

import "lockstep/kernels"

// ClampedSwiGLU: with g = min(gu[r,i], Limit), u = min(max(gu[r,I+i], -Limit), Limit): out[r,i] =
// round((g*sigm(Alpha*g))*(u+1)); gu [R, 2I], out [R, I] (the experts of gpt-oss).
func (d *Device) ClampedSwiGLU(out, gu kernels.Tensor, c kernels.Clamp) {
	n := out.Cols
	mustShape("clamped swiglu", "gu", gu, out.Rows, 2*n)
	o, in := d.matrix(out), d.matrix(gu)
	d.eachRow(out.Rows, 2*n, 1, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			v := in.load(r, buf[0])
			y := o.target(r, buf[0])
			d.vec.ClampedSwiGLU(y, v[:n], v[n:], c)
			o.store(r, y)
		}
	})
}

// ClampedSwiGLUBackward, with s = sigm(Alpha*g): du = round(dout*(g*s)), dg = round((dout*(u+1))*(s*(1 +
// (Alpha*g)*(1-s)))), each 0 where its clamp took effect. dgu, gu [R, 2I]; dout [R, I]. dgu may be gu.
func (d *Device) ClampedSwiGLUBackward(dgu, dout, gu kernels.Tensor, c kernels.Clamp) {
	const op = "clamped swiglu backward"
	n := dout.Cols
	mustShape(op, "gu", gu, dout.Rows, 2*n)
	mustShape(op, "dgu", dgu, dout.Rows, 2*n)
	grad, dy, in := d.matrix(dgu), d.matrix(dout), d.matrix(gu)
	d.eachRow(dout.Rows, 2*n, 2, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			v := in.load(r, buf[0])
			z := grad.target(r, buf[0])
			d.vec.ClampedSwiGLUGrad(z[:n], z[n:], dy.load(r, buf[1]), v[:n], v[n:], c)
			grad.store(r, z)
		}
	})
}
