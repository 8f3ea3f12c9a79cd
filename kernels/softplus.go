package kernels

import "math"

// Ln1p is ln(1+e) of e in [0, 1]: with s = e/(2+e) <= 1/3, 2 (s + s^3/3 + ... + s^15/15), mul and add unfused. Unlike
// Ln(1+e) it keeps the relative precision of a small e. The rest of the series is under 2^-29 of the sum.
func Ln1p(e float32) float32 {
	s := e / (2 + e)
	z := float32(s * s)
	p := float32(1.0 / 15)
	for _, c := range [6]float32{1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3} {
		p = float32(z*p) + c
	}
	return float32(s+s) + float32(float32(s+s)*float32(z*p))
}

// Softplus is ln(1 + e^x) = max(x, 0) + Ln1p(2^(-|x|*log2e)).
func (m Exp2Mode) Softplus(x float32) float32 {
	return max(x, 0) + Ln1p(m.Func()(float32(float32(-math.Abs(float64(x)))*Log2E)))
}

// Exp is e^x: 2^(x*log2e) for x <= 0, above that the quotient of 1 and 2^-(x*log2e).
func (m Exp2Mode) Exp(x float32) float32 {
	if x <= 0 {
		return m.Func()(float32(x * Log2E))
	}
	return 1 / m.Func()(-float32(x*Log2E))
}
