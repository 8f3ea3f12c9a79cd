package vec

// A head of 2h elements is h pairs (x[i], x[i+h]), rotated by the angles of cos and sin [h]. The loops
// take both halves of each array.

// Rotate is dst[i] = x[i]*c - x[i+h]*s, dst[i+h] = x[i+h]*c + x[i]*s. dst may be x.
func (o *Ops) Rotate(dst, x, cos, sin []float32) {
	h := len(x) / 2
	o.rotate(dst[:h], dst[h:2*h], x[:h], x[h:2*h], cos[:h], sin[:h])
}

func rotateGo(lo, hi, xlo, xhi, cos, sin []float32) {
	for i, c := range cos {
		lo[i], hi[i] = rotatePair(xlo[i], xhi[i], c, sin[i])
	}
}

func rotatePair(a, b, c, s float32) (lo, hi float32) {
	return float32(a*c) - float32(b*s), float32(b*c) + float32(a*s)
}

// NormRotate is Rotate of (x[i]*a)*w[i]. dst may be x.
func (o *Ops) NormRotate(dst, x []float32, a float32, w, cos, sin []float32) {
	h := len(x) / 2
	o.normRotate(dst[:h], dst[h:2*h], x[:h], x[h:2*h], w[:h], w[h:2*h], cos[:h], sin[:h], a)
}

func normRotateGo(lo, hi, xlo, xhi, wlo, whi, cos, sin []float32, a float32) {
	for i, c := range cos {
		lo[i], hi[i] = rotatePair(float32(float32(xlo[i]*a)*wlo[i]), float32(float32(xhi[i]*a)*whi[i]), c, sin[i])
	}
}

// Unrotate is the gradient of Rotate: dst[i] = x[i]*c + x[i+h]*s, dst[i+h] = x[i+h]*c - x[i]*s. dst may be x.
func (o *Ops) Unrotate(dst, x, cos, sin []float32) {
	h := len(x) / 2
	o.unrotate(dst[:h], dst[h:2*h], x[:h], x[h:2*h], cos[:h], sin[:h])
}

func unrotateGo(lo, hi, xlo, xhi, cos, sin []float32) {
	for i, c := range cos {
		lo[i], hi[i] = unrotatePair(xlo[i], xhi[i], c, sin[i])
	}
}

func unrotatePair(a, b, c, s float32) (lo, hi float32) {
	return float32(a*c) + float32(b*s), float32(b*c) - float32(a*s)
}

// UnrotateMul is Unrotate and then a product with w. dst may be x.
func (o *Ops) UnrotateMul(dst, x, w, cos, sin []float32) {
	h := len(x) / 2
	o.unrotateMul(dst[:h], dst[h:2*h], x[:h], x[h:2*h], w[:h], w[h:2*h], cos[:h], sin[:h])
}

func unrotateMulGo(lo, hi, xlo, xhi, wlo, whi, cos, sin []float32) {
	for i, c := range cos {
		a, b := unrotatePair(xlo[i], xhi[i], c, sin[i])
		lo[i], hi[i] = a*wlo[i], b*whi[i]
	}
}

// UnrotateAddMul adds (x*a)*z to dst, z being Unrotate of g: one head's part of the gradient of its norm's weight. It
// takes some pairs only, as halves: lo, glo and xlo lie in the first half of a head, hi, ghi and xhi in the second.
func (o *Ops) UnrotateAddMul(lo, hi, glo, ghi, xlo, xhi, cos, sin []float32, a float32) {
	n := len(cos)
	o.unrotateAddMul(lo[:n], hi[:n], glo[:n], ghi[:n], xlo[:n], xhi[:n], cos, sin[:n], a)
}

func unrotateAddMulGo(lo, hi, glo, ghi, xlo, xhi, cos, sin []float32, a float32) {
	for i, c := range cos {
		p, q := unrotatePair(glo[i], ghi[i], c, sin[i])
		lo[i] += float32(float32(xlo[i]*a) * p)
		hi[i] += float32(float32(xhi[i]*a) * q)
	}
}

// RotatePairs rotates the pairs (x[2i], x[2i+1]) in place.
func (o *Ops) RotatePairs(x, cos, sin []float32) {
	for i, c := range cos {
		x[2*i], x[2*i+1] = rotatePair(x[2*i], x[2*i+1], c, sin[i])
	}
}

// UnrotatePairs is the gradient of RotatePairs, in place.
func (o *Ops) UnrotatePairs(x, cos, sin []float32) {
	for i, c := range cos {
		x[2*i], x[2*i+1] = unrotatePair(x[2*i], x[2*i+1], c, sin[i])
	}
}
