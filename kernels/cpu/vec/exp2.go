package vec

// Exp2 is 2^x for x <= 0.
func (o *Ops) Exp2(x float32) float32 { return o.exp2(x) }

// Exp2Sub is dst[i] = Exp2((x[i]-m)*scale): subtraction and product rounded each, arguments above 0 taken as 0. With
// scale 1 it is Exp2(x[i]-m). dst may be x.
func (o *Ops) Exp2Sub(dst, x []float32, scale, m float32) { o.exp2Sub(dst[:len(x)], x, scale, m) }

func exp2SubGo(exp2 func(float32) float32) func(dst, x []float32, scale, m float32) {
	return func(dst, x []float32, scale, m float32) {
		for i, v := range x {
			t := float32((v - m) * scale)
			if t > 0 {
				t = 0
			}
			dst[i] = exp2(t)
		}
	}
}
