package vec

import "lockstep/kernels"

// ClampedSwiGLU is out[i] = (g*sigm(alpha*g))*(u+1) of g[i] and u[i] held at the limit. out may be g or u.
func (o *Ops) ClampedSwiGLU(out, g, u []float32, c kernels.Clamp) {
	for i, x := range g {
		x, y := min(x, c.Limit), min(max(u[i], -c.Limit), c.Limit)
		out[i] = float32(x*sigmoid(o.exp2, float32(c.Alpha*x))) * float32(y+1)
	}
}

// ClampedSwiGLUGrad is, with s = sigm(alpha*g): du = dout*(g*s), dg = (dout*(u+1))*(s*(1 + (alpha*g)*(1-s))), 0 beyond
// the limit. dg may be g, and du may be u.
func (o *Ops) ClampedSwiGLUGrad(dg, du, dout, g, u []float32, c kernels.Clamp) {
	for i, x := range g {
		held, up := min(x, c.Limit), min(max(u[i], -c.Limit), c.Limit)
		a := float32(c.Alpha * held)
		s, d := sigmoid(o.exp2, a), dout[i]
		outU, outG := d*float32(held*s), float32(d*float32(up+1))*float32(s*(1+float32(a*(1-s))))
		if u[i] > c.Limit || u[i] < -c.Limit {
			outU = 0
		}
		if x > c.Limit {
			outG = 0
		}
		du[i], dg[i] = outU, outG
	}
}
