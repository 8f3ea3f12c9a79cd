package quant

import "math"

// MXFP4Block is how many weights of a row share a scale in MXFP4 (OCP Microscaling Formats v1.0, section 5).
const MXFP4Block = 32

// e2m1Values are the numbers of the 16 codes: sign, 2 bits of exponent (bias 1), 1 of significand.
var e2m1Values = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// e8m0Values are the numbers of the 256 scales, 2^(e-127); the last is NaN.
var e8m0Values = func() (v [256]float32) {
	for e := range v {
		v[e] = float32(math.Ldexp(1, e-127))
	}
	v[255] = nan
	return v
}()
