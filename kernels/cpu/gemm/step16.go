package gemm

import (
	"math"
	"math/bits"
)

// steps is the number of products of one step of DotTC16.
const steps = 16

// fraction is the number of fractional bits that a term of a step keeps, relative to the largest exponent of the step.
const fraction = 25

// Step16 is the scalar reference of one step of kernels.DotTC16: acc plus the 16 products x[i]*y[i] of bf16 values. A
// product's exponent is the sum of its factors' exponents, with subnormal factors normalised first, so its significand
// lies in [1, 4). Zeros take no part. A subnormal result is truncated toward zero like any other, a zero result is +0,
// and a sum beyond the largest fp32 is an infinity. If an operand is not finite, the result is the sum of what is not
// finite among acc and the products, by IEEE rules; a NaN is 0x7fffffff, whichever came in, as tensor cores have it.
func Step16(acc float32, x, y *[steps]float32) float32 {
	sum, exponent, ok := stepSum(acc, x[:], y[:], fraction)
	if !ok {
		return stepInfinite(acc, x[:], y[:])
	}
	return truncated(sum, exponent)
}

// stepSum is the sum of a step, in units of 2^exponent: acc and the products x[i]*y[i], each of which keeps so many
// fractional bits relative to the largest exponent. ok is false where one is not finite.
func stepSum(acc float32, x, y []float32, fraction int) (sum int64, exponent int, ok bool) {
	type term struct {
		significand int64 // signed
		exponent    int   // the value is significand * 2^(exponent-46)
	}
	var terms [steps32 + 1]term
	if !finite(acc) {
		return 0, 0, false
	}
	m, e := splitFP32(acc)
	terms[len(x)] = term{m << 23, e}
	for i := range x {
		if !finite(x[i]) || !finite(y[i]) {
			return 0, 0, false
		}
		mx, ex := splitFP32(x[i])
		my, ey := splitFP32(y[i])
		terms[i] = term{mx * my, ex + ey}
	}
	top := math.MinInt32
	for _, t := range terms {
		if t.significand != 0 {
			top = max(top, t.exponent)
		}
	}
	for _, t := range terms {
		shift := min(uint(top-t.exponent+46-fraction), 63)
		if t.significand > 0 {
			sum += t.significand >> shift
		} else if t.significand < 0 {
			sum -= -t.significand >> shift
		}
	}
	return sum, top - fraction, true
}

func finite(x float32) bool { return math.Float32bits(x)&0x7f800000 != 0x7f800000 }

// splitFP32 is x as significand * 2^(exponent-23) with 24 significant bits, sign included; 0 has significand 0.
func splitFP32(x float32) (significand int64, exponent int) {
	b := math.Float32bits(x)
	significand, exponent = int64(b&0x7fffff), int(b>>23&0xff)-127
	if exponent == -127 {
		shift := bits.LeadingZeros32(uint32(significand)) - 8
		significand, exponent = significand<<shift, -126-shift
	} else {
		significand |= 1 << 23
	}
	if b>>31 != 0 {
		significand = -significand
	}
	return significand, exponent
}

// truncated is sum * 2^exponent, truncated toward zero to fp32.
func truncated(sum int64, exponent int) float32 {
	magnitude := uint64(max(sum, -sum))
	drop := max(bits.Len64(magnitude)-24, -149-exponent, 0) // bits below the last one of the result
	magnitude = magnitude >> drop << drop
	if magnitude == 0 {
		return 0
	}
	// exact, or beyond the largest fp32
	v := float32(float64(magnitude) * math.Float64frombits(uint64(exponent+1023)<<52))
	if sum < 0 {
		v = -v
	}
	return v
}

// stepInfinite is a step with operands that are not finite.
func stepInfinite(acc float32, x, y []float32) float32 {
	sum := float32(0)
	if !finite(acc) {
		sum = acc
	}
	for i := range x {
		if !finite(x[i]) || !finite(y[i]) {
			sum += float32(x[i] * y[i])
		}
	}
	if sum != sum {
		return math.Float32frombits(0x7fffffff)
	}
	return sum
}
