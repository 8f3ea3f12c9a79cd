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

// DecodeMXFP4 decodes blocks of [MXFP4Block] codes, 16 bytes each with the earlier of two codes in the lower bits, and
// a scale for each block: dst = code * 2^(scale-127). Products are exact, in bf16 too, unless they are above the
// largest number, where they are infinite. A block whose scale is 255 becomes NaN.
func DecodeMXFP4(dst []float32, blocks, scales []byte) {
	const bytes = MXFP4Block / 2
	for i, e := range scales {
		s, to := e8m0Values[e], dst[i*MXFP4Block:][:MXFP4Block]
		for j, c := range blocks[i*bytes:][:bytes] {
			to[2*j], to[2*j+1] = e2m1Values[c&15]*s, e2m1Values[c>>4]*s
		}
	}
}
