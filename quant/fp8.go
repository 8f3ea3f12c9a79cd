package quant

import "math"

// E4M3 is an 8-bit number: sign, 4 bits of exponent (bias 7), 3 of significand. It has subnormals and one NaN of each
// sign, no infinity (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433; "e4m3fn" elsewhere).
type E4M3 uint8

// MaxE4M3 is the largest E4M3.
const MaxE4M3 = 448

// EncodeE4M3 rounds to nearest even and saturates at [MaxE4M3], infinities too. NaN stays NaN.
func EncodeE4M3(x float32) E4M3 {
	const (
		nan, largest  = 0x7f, 0x7e
		leastNormal   = 1.0 / 64
		subnormalUnit = 1 << 14 // fp32 at this size lie 2^-9 apart, as subnormal E4M3 do
		kept          = 20      // lowest bit of the fp32 significand that E4M3 has
		bias          = (127 - 7) << 3
	)
	b := math.Float32bits(x)
	sign := E4M3(b >> 24 & 0x80)
	b &= 0x7fffffff
	switch a := math.Float32frombits(b); {
	case a != a:
		return sign | nan
	case a >= MaxE4M3:
		return sign | largest
	case a < leastNormal:
		return sign | E4M3(math.Float32bits(a+subnormalUnit)-math.Float32bits(subnormalUnit))
	}
	return sign | E4M3((b+1<<(kept-1)-1+b>>kept&1)>>kept-bias)
}

// IsNaNE4M3 tells whether a code is a NaN.
func IsNaNE4M3(code byte) bool { return code&0x7f == 0x7f }

// Float is the number's value, exactly.
func (q E4M3) Float() float32 { return e4m3Values[q] }

var e4m3Values = func() (v [256]float32) {
	for q := range v {
		exponent, significand := q>>3&15, float64(q&7)
		x := math.Ldexp(8+significand, exponent-7-3)
		switch {
		case q&0x7f == 0x7f:
			x = math.NaN()
		case exponent == 0:
			x = math.Ldexp(significand, 1-7-3)
		}
		v[q] = float32(math.Copysign(x, 0.5-float64(q>>7)))
	}
	return v
}()
