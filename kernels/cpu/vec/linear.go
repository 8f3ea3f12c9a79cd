package vec

// Scale is x[i] = x[i]*a.
func (o *Ops) Scale(x []float32, a float32) { o.scaleTo(x, x, a) }

// ScaleTo is dst[i] = x[i]*a. dst may be x.
func (o *Ops) ScaleTo(dst, x []float32, a float32) { o.scaleTo(dst[:len(x)], x, a) }

func scaleToGo(dst, x []float32, a float32) {
	for i, v := range x {
		dst[i] = v * a
	}
}

// ScaleAdd is dst[i] = dst[i]*a + x[i]*b, each product rounded.
func (o *Ops) ScaleAdd(dst []float32, a float32, x []float32, b float32) {
	o.scaleAdd(dst[:len(x)], a, x, b)
}

func scaleAddGo(dst []float32, a float32, x []float32, b float32) {
	for i, v := range x {
		dst[i] = float32(dst[i]*a) + float32(v*b)
	}
}

// Add is dst[i] = x[i] + y[i]. dst may be x or y.
func (o *Ops) Add(dst, x, y []float32) { o.add(dst[:len(x)], x, y[:len(x)]) }

func addGo(dst, x, y []float32) {
	for i, v := range x {
		dst[i] = v + y[i]
	}
}

// Mul is dst[i] = x[i] * y[i]. dst may be x or y.
func (o *Ops) Mul(dst, x, y []float32) { o.mul(dst[:len(x)], x, y[:len(x)]) }

func mulGo(dst, x, y []float32) {
	for i, v := range x {
		dst[i] = v * y[i]
	}
}

// AddMul is dst[i] = dst[i] + (x[i]*a)*y[i], each product rounded: one row's part of a norm's weight gradient.
func (o *Ops) AddMul(dst, x []float32, a float32, y []float32) {
	o.addMul(dst[:len(x)], x, a, y[:len(x)])
}

func addMulGo(dst, x []float32, a float32, y []float32) {
	for i, v := range x {
		dst[i] += float32(float32(v*a) * y[i])
	}
}
