package vec

// Rotate turns the pairs (x[i], x[i+h]) of one head, h being half its length and that of cos and sin:
// dst[i] = x[i]*c - x[i+h]*s, dst[i+h] = x[i+h]*c + x[i]*s. dst may be x.
func (o *Ops) Rotate(dst, x, cos, sin []float32) {
	h := len(x) / 2
	o.rotate(dst[:h], dst[h:2*h], x[:h], x[h:2*h], cos[:h], sin[:h])
}

func rotateGo(lo, hi, xlo, xhi, cos, sin []float32) {
	for i, c := range cos {
		a, b, s := xlo[i], xhi[i], sin[i]
		lo[i] = float32(a*c) - float32(b*s)
		hi[i] = float32(b*c) + float32(a*s)
	}
}

// Unrotate is the gradient of Rotate: dst[i] = x[i]*c + x[i+h]*s, dst[i+h] = x[i+h]*c - x[i]*s. dst may be x.
func (o *Ops) Unrotate(dst, x, cos, sin []float32) {
	h := len(x) / 2
	o.UnrotatePairs(dst[:h], dst[h:], x[:h], x[h:], cos[:h], sin[:h])
}

// UnrotatePairs is [Ops.Unrotate] of some pairs only: lo and xlo lie in the first half of a head, hi and xhi in the second.
func (o *Ops) UnrotatePairs(lo, hi, xlo, xhi, cos, sin []float32) {
	n := len(cos)
	o.unrotate(lo[:n], hi[:n], xlo[:n], xhi[:n], cos, sin[:n])
}

func unrotateGo(lo, hi, xlo, xhi, cos, sin []float32) {
	for i, c := range cos {
		a, b, s := xlo[i], xhi[i], sin[i]
		lo[i] = float32(a*c) + float32(b*s)
		hi[i] = float32(b*c) - float32(a*s)
	}
}
