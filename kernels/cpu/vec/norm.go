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

// NormGrad is dst[i] = rstd*(g[i] - (x[i]*rstd)*c), c being the mean of g*(x*rstd). dst may be g or x.
func (o *Ops) NormGrad(dst, g, x []float32, rstd, c float32) {
	o.normGrad(dst[:len(g)], g, x[:len(g)], rstd, c)
}

func normGradGo(dst, g, x []float32, rstd, c float32) {
	for i, v := range g {
		dst[i] = rstd * (v - float32(float32(x[i]*rstd)*c))
	}
}

// NormGradAdd adds to dst what [Ops.NormGrad] would write.
func (o *Ops) NormGradAdd(dst, g, x []float32, rstd, c float32) {
	o.normGradAdd(dst[:len(g)], g, x[:len(g)], rstd, c)
}

func normGradAddGo(dst, g, x []float32, rstd, c float32) {
	for i, v := range g {
		dst[i] += float32(rstd * (v - float32(float32(x[i]*rstd)*c)))
	}
}
