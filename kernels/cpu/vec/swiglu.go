package vec

import "lockstep/kernels"

// SwiGLU is out[i] = (g[i]*sigm(g[i]))*u[i]. out may be g or u.
func (o *Ops) SwiGLU(out, g, u []float32) { o.swiglu(out[:len(g)], g, u[:len(g)]) }

func swigluGo(exp2 func(float32) float32) func(out, g, u []float32) {
	return func(out, g, u []float32) {
		for i, x := range g {
			out[i] = float32(x*sigmoid(exp2, x)) * u[i]
		}
	}
}

// SwiGLUGrad is, with s = sigm(g): du = dout*(g*s), dg = (dout*u)*(s*(1 + g*(1-s))). dg may be g, and du may be u.
func (o *Ops) SwiGLUGrad(dg, du, dout, g, u []float32) {
	n := len(g)
	o.swigluGrad(dg[:n], du[:n], dout[:n], g, u[:n])
}

func swigluGradGo(exp2 func(float32) float32) func(dg, du, dout, g, u []float32) {
	return func(dg, du, dout, g, u []float32) {
		for i, x := range g {
			s, d, up := sigmoid(exp2, x), dout[i], u[i]
			du[i] = d * float32(x*s)
			dg[i] = float32(d*up) * float32(s*(1+float32(x*(1-s))))
		}
	}
}

// sigmoid is 1/(1+exp(-x)) without overflow: e = exp2(-|x|*log2e), then 1/(1+e) or, below 0, e/(1+e).
func sigmoid(exp2 func(float32) float32, x float32) float32 {
	if x >= 0 {
		e := exp2(float32(-x * kernels.Log2E))
		return 1 / (1 + e)
	}
	e := exp2(float32(x * kernels.Log2E))
	return e / (1 + e)
}

// Sigmoid is dst[i] = 1/(1+exp(-x[i])). dst may be x.
func (o *Ops) Sigmoid(dst, x []float32) {
	for i, v := range x {
		dst[i] = sigmoid(o.exp2, v)
	}
}
