package cpu

import "lockstep/kernels"

// SwiGLU: out[r,i] = round((g*sigm(g))*u) with g = gu[r,i], u = gu[r,I+i]; gu [R, 2I], out [R, I] (Shazeer, arXiv
// 2002.05202).
func (d *Device) SwiGLU(out, gu kernels.Tensor) { d.gated("swiglu", out, gu, d.vec.SwiGLU) }

// SwiGLUBackward, with s = sigm(g): du = round(dout*(g*s)), dg = round((dout*u)*(s*(1 + g*(1-s)))). dgu, gu [R, 2I];
// dout [R, I]. dgu may be gu.
func (d *Device) SwiGLUBackward(dgu, dout, gu kernels.Tensor) {
	d.gatedBackward("swiglu backward", dgu, dout, gu, d.vec.SwiGLUGrad)
}

// gated sets each row of out [R, I] from the gates and the values of gu [R, 2I].
func (d *Device) gated(op string, out, gu kernels.Tensor, row func(out, g, u []float32)) {
	n := out.Cols
	mustShape(op, "gu", gu, out.Rows, 2*n)
	o, in := d.matrix(out), d.matrix(gu)
	d.eachRow(out.Rows, 2*n, 1, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			v := in.load(r, buf[0])
			y := o.target(r, buf[0])
			row(y, v[:n], v[n:])
			o.store(r, y)
		}
	})
}

// gatedBackward sets each row of dgu [R, 2I] from those of dout [R, I] and gu [R, 2I]. dgu may be gu.
func (d *Device) gatedBackward(op string, dgu, dout, gu kernels.Tensor, row func(dg, du, dout, g, u []float32)) {
	n := dout.Cols
	mustShape(op, "gu", gu, dout.Rows, 2*n)
	mustShape(op, "dgu", dgu, dout.Rows, 2*n)
	grad, dy, in := d.matrix(dgu), d.matrix(dout), d.matrix(gu)
	d.eachRow(dout.Rows, 2*n, 2, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			v := in.load(r, buf[0])
			z := grad.target(r, buf[0])
			row(z[:n], z[n:], dy.load(r, buf[1]), v[:n], v[n:])
			grad.store(r, z)
		}
	})
}
