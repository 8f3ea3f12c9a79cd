package vec

// NormScale is dst[i] = (x[i]*a)*w[i]. dst may be x.
func (o *Ops) NormScale(dst, x []float32, a float32, w []float32) {
	o.normScale(dst[:len(x)], x, a, w[:len(x)])
}

func normScaleGo(dst, x []float32, a float32, w []float32) {
	for i, v := range x {
		dst[i] = float32(v*a) * w[i]
	}
}

// NormGrad is dst[i] = rstd*(g[i] - xh[i]*c), c being the mean of g*xh. dst may be g or xh.
func (o *Ops) NormGrad(dst, g, xh []float32, rstd, c float32) {
	o.normGrad(dst[:len(g)], g, xh[:len(g)], rstd, c)
}

func normGradGo(dst, g, xh []float32, rstd, c float32) {
	for i, v := range g {
		dst[i] = rstd * (v - float32(xh[i]*c))
	}
}
