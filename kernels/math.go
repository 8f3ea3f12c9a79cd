package kernels

import "math"

// FMA is the IEEE fp32 fused multiply-add x*y+z, rounded once, in plain Go. The product of two fp32 is exact in fp64;
// the sum is rounded to odd there, which makes the second rounding to fp32 the only one that counts (Boldo & Melquiond,
// "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd").
func FMA(x, y, z float32) float32 {
	p := float64(float64(x) * float64(y)) // exact
	c := float64(z)
	s := p + c
	b := math.Float64bits(s)
	if b&0x1fffffff != 0x10000000 && (b>>52)&0x7ff >= 0x381 || (b>>52)&0x7ff == 0x7ff {
		return float32(s) // not half way between two fp32, and a normal fp32: one rounding already
	}
	t := s - p
	e := (p - (s - t)) + (c - t) // the error of s
	if e != 0 && b&1 == 0 {
		if (e > 0) == (s > 0) {
			b++
		} else {
			b--
		}
		s = math.Float64frombits(b)
	}
	return float32(s)
}

// Exp2 is 2^x for x <= 0 by the definition "poly": x is split as n + f with n the nearest integer (ties to even), |f|
// <= 1/2; the polynomial of 2^f is Horner's rule in fma. Below -126 the result is +0. NaN stays NaN, whatever its
// payload. Exp2(0) is 1, no result is above 1, and the relative error is at most 6.8e-8, 1.13 times 2^-24
// (math_test.go).
func Exp2(x float32) float32 {
	if x < -126 {
		return 0
	}
	if x != x {
		return x
	}
	t := x + Exp2Magic
	n := t - Exp2Magic
	f := x - n
	p := Exp2Coeffs[0]
	for _, c := range Exp2Coeffs[1:] {
		p = FMA(p, f, c)
	}
	return math.Float32frombits(math.Float32bits(p) + math.Float32bits(t)<<23)
}

// Exp2Magic added to a small fp32 leaves its nearest integer in the low bits.
const Exp2Magic = 12582912 // 1.5 * 2^23

// Exp2Coeffs is the polynomial of 2^f on [-1/2, 1/2], highest degree first: the minimax polynomial (Remez, relative
// error 2.0e-9 before its coefficients are rounded), then the fp32 neighbours of its coefficients searched for the
// least error of Horner's rule in fp32.
var Exp2Coeffs = [7]float32{
	1.53519242e-4, 1.33988739e-3, 9.61845741e-3, 5.55033758e-2, 2.40226462e-1, 6.93147182e-1, 1,
}

// Log2E is the factor from natural to binary exponents, and Ln2 back.
const (
	Log2E float32 = math.Log2E
	Ln2   float32 = math.Ln2
)

// Ln is the natural logarithm of a positive normal x: x = 2^e * m with m in [sqrt(1/2), sqrt(2)), s = (m-1)/(m+1), ln m
// = 2 (s + s^3/3 + s^5/5 + s^7/7 + s^9/9), mul and add unfused (the series of atanh; its remainder is under 2^-27).
func Ln(x float32) float32 {
	b := math.Float32bits(x)
	e := int32(b>>23) - 127
	m := math.Float32frombits(b&0x7fffff | 127<<23)
	if m >= math.Sqrt2 {
		m = float32(m * 0.5)
		e++
	}
	s := (m - 1) / (m + 1)
	z := float32(s * s)
	p := float32(z*(1.0/9)) + 1.0/7
	p = float32(z*p) + 1.0/5
	p = float32(z*p) + 1.0/3
	r := float32(s+s) + float32(float32(s+s)*float32(z*p))
	return float32(float32(e)*Ln2) + r
}

// RoundBF16 converts to bf16, round to nearest even; NaN stays a quiet NaN.
func RoundBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// NearestBF16 is x rounded to bf16.
func NearestBF16(x float32) float32 { return FromBF16(RoundBF16(x)) }

// FromBF16 converts exactly.
func FromBF16(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }
