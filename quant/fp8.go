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

// FP8Block is the side of a square of weights that share a scale, as in DeepSeek-V3 (arXiv 2412.19437) and in vLLM's
// block FP8.
const FP8Block = 128

// RoundFP8Blocks rounds a matrix w [rows, cols] in place to block FP8. Squares of [FP8Block] rows and columns from the
// first on, cut at the edges, have a scale s = (largest |w|)/448 in fp32, and w = E4M3(w/s)*s, every operation rounded
// to fp32. A square whose scale is 0 becomes +0. NaN is ignored for the scale and becomes the NaN 0x7fc00000, as does
// every element of a square with an infinity.
func RoundFP8Blocks(w []float32, rows, cols int) {
	for r := 0; r < rows; r += FP8Block {
		for c := 0; c < cols; c += FP8Block {
			roundSquare(w[r*cols+c:], min(FP8Block, rows-r), min(FP8Block, cols-c), cols)
		}
	}
}

func roundSquare(w []float32, rows, cols, stride int) {
	var largest float32
	for r := range rows {
		for _, x := range w[r*stride:][:cols] {
			if x < 0 {
				x = -x
			}
			if x > largest {
				largest = x
			}
		}
	}
	scale := largest / MaxE4M3
	for r := range rows {
		row := w[r*stride:][:cols]
		if scale == 0 {
			clear(row)
			continue
		}
		for i, x := range row {
			if row[i] = EncodeE4M3(x/scale).Float() * scale; row[i] != row[i] {
				row[i] = nan
			}
		}
	}
}

// DecodeFP8Blocks decodes E4M3 codes [rows, cols]: dst = code * scale, the product rounded to fp32. Blocks
// of high rows and wide columns from the first row and column on, cut at the edges, share one of the scales
// [ceil(rows/high), ceil(cols/wide)] (weight_dequant of github.com/deepseek-ai/DeepSeek-V3, inference/kernel.py).
func DecodeFP8Blocks(dst []float32, codes []byte, scales []float32, rows, cols, high, wide int) {
	across := (cols + wide - 1) / wide
	for r := range rows {
		to, from := dst[r*cols:][:cols], codes[r*cols:][:cols]
		for i, s := range scales[r/high*across:][:across] {
			at, end := i*wide, min((i+1)*wide, cols)
			for j, c := range from[at:end] {
				to[at+j] = e4m3Values[c] * s
			}
		}
	}
}
