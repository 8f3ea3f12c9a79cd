package vec

import "lockstep/kernels"

// Exp2Sub is dst[i] = Exp2((x[i]-m)*scale): subtraction and product rounded each, arguments above 0 taken as 0. With scale 1 it is
// Exp2(x[i]-m). dst may be x.
func (o *Ops) Exp2Sub(dst, x []float32, scale, m float32) { o.exp2Sub(dst[:len(x)], x, scale, m) }

func exp2SubGo(dst, x []float32, scale, m float32) {
	for i, v := range x {
		t := float32((v - m) * scale)
		if t > 0 {
			t = 0
		}
		dst[i] = kernels.Exp2(t)
	}
}
