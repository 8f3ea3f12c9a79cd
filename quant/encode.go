package quant

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Encoding is a format that numbers can be put into. Blocks of High rows and Format.Wide columns, counted from the
// first row and column of a tensor and cut at its edges, share a scale, computed from amax, the largest magnitude:
//
//	int4   s = bf16(fp32(amax/7)); the code is x/s in fp32 to the nearest integer, ties to even, within [-7, 7]
//	mxfp4  s = 2^e, e the least with amax <= 6*2^e from -127 on; E2M1 nearest to x*2^-e, ties to the even code
//	mxfp8  s = 2^e, e the least with amax <= 448*2^e from -127 on; E4M3 nearest to x*2^-e, ties to the even code
//	fp8    s = fp32(amax/448); E4M3 nearest to fp32(x/s), ties to the even code
//
// Rows of activations have FP8x128, fp8 in blocks of 1 x 128 for weights' 128 x 128.
//
// The scales of MX formats never clip, as those of cuBLAS and unlike the example of OCP's specification (see "Recipes
// for Pre-training LLMs with MXFP8", arXiv 2506.08027). Where s is 0, or all of a block is, codes are +0; where one
// value is not finite, the scale is NaN, and so is every number of the block.
type Encoding string

const (
	AsTrained Encoding = "" // not encoded
	INT4      Encoding = "int4"
	MXFP4     Encoding = "mxfp4"
	MXFP8     Encoding = "mxfp8"
	FP8       Encoding = "fp8"
	FP8x128   Encoding = "fp8x128" // of activations alone
)

// Encodings are those of weights.
var Encodings = []Encoding{INT4, MXFP4, MXFP8, FP8}

// Validate returns an error for what weights are not encoded by.
func (e Encoding) Validate() error {
	if e == AsTrained || slices.Contains(Encodings, e) {
		return nil
	}
	var names []string
	for _, known := range Encodings {
		names = append(names, fmt.Sprintf("%q", known))
	}
	return fmt.Errorf("weights %q: want %s or nothing", e, strings.Join(names, ", "))
}

// Format is how codes and scales lie in memory.
func (e Encoding) Format() Format {
	switch e {
	case INT4:
		return Format{CodeINT4, ScaleBF16, 32}
	case MXFP4:
		return Format{CodeE2M1, ScaleE8M0, 32}
	case MXFP8:
		return Format{CodeE4M3, ScaleE8M0, 32}
	case FP8, FP8x128:
		return Format{CodeE4M3, ScaleF32, 128}
	}
	panic(fmt.Sprintf("quant: no format of encoding %q", e))
}

// High is the rows of a block.
func (e Encoding) High() int {
	if e == FP8 {
		return 128
	}
	return 1
}

// Encode encodes rows x [rows, cols], whole blocks from the first row on: codes [rows, Format().RowBytes(cols)], and
// scales [ceil(rows/High), Format().Blocks(cols)].
func (e Encoding) Encode(codes []byte, scales, x []float32, rows, cols int) {
	f, high := e.Format(), e.High()
	stride, blocks := f.RowBytes(cols), f.Blocks(cols)
	clear(codes[:rows*stride])
	for r := 0; r < rows; r += high {
		for b := range blocks {
			end, from, to := min(r+high, rows), b*f.Wide, min((b+1)*f.Wide, cols)
			var block []float32
			amax, finite := float32(0), true
			for row := r; row < end; row++ {
				block = x[row*cols+from : row*cols+to]
				for _, v := range block {
					finite = finite && v-v == 0
					amax = max(amax, v, -v)
				}
			}
			s := e.scale(amax)
			if !finite {
				s = nan
			}
			scales[r/high*blocks+b] = s
			for row := r; row < end; row++ {
				e.encodeRun(codes[row*stride:][:stride], x[row*cols+from:row*cols+to], from, s, amax)
			}
		}
	}
}

// scale is that of a block whose largest magnitude is amax.
func (e Encoding) scale(amax float32) float32 {
	switch e {
	case INT4:
		return roundBF16(amax / 7)
	case MXFP4:
		return leastPower(amax, 1.5, 2)
	case MXFP8:
		return leastPower(amax, 1.75, 8)
	}
	return amax / MaxE4M3
}

// leastPower is the least power of two, from 2^-127 on, that is at least amax / (significand * 2^exponent).
func leastPower(amax, significand float32, exponent int) float32 {
	if amax == 0 {
		return e8m0Values[0]
	}
	fraction, k := math.Frexp(float64(amax)) // [0.5, 1)
	e := k - 1 - exponent
	if float32(2*fraction) > significand {
		e++
	}
	return float32(math.Ldexp(1, max(e, -127)))
}

// encodeRun writes the codes of a block's columns of a row, from column first on.
func (e Encoding) encodeRun(codes []byte, x []float32, first int, s, amax float32) {
	nothing := s == 0 || amax == 0 || s != s
	inverse := 1 / s // of a power of two, exact
	for i, v := range x {
		c, at := byte(0), first+i
		switch {
		case e == INT4:
			c = 8
			if !nothing {
				c = byte(int(min(max(math.RoundToEven(float64(v/s)), -7), 7)) + 8)
			}
		case nothing:
			if e.Format().Code == CodeE4M3 && s != s {
				c = 0x7f
			}
		case e == MXFP4:
			c = encodeE2M1(v * inverse)
		case e == MXFP8:
			c = byte(EncodeE4M3(v * inverse))
		default:
			c = byte(EncodeE4M3(v / s))
		}
		if e.Format().Code == CodeE4M3 {
			codes[at] = c
		} else {
			codes[at/2] |= c << (4 * (at & 1))
		}
	}
}

// encodeE2M1 is the nearest of 16 codes, ties to the even one, within [-6, 6].
func encodeE2M1(x float32) byte {
	sign, a := byte(math.Float32bits(x)>>31)<<3, float32(math.Abs(float64(x)))
	// Numbers half way between neighbours, each of which goes to the even of the two.
	for code, half := range [...]float32{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5} {
		if a < half || a == half && code&1 == 0 {
			return sign | byte(code)
		}
	}
	return sign | 7
}

// roundBF16 rounds to bf16, ties to even.
func roundBF16(x float32) float32 {
	if x != x {
		return nan
	}
	b := math.Float32bits(x)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// Round makes of a matrix x [rows, cols] the numbers that its codes stand for, products of code and scale rounded to
// fp32. Bands of whole blocks may be rounded one by one. Every NaN becomes 0x7fc00000.
func (e Encoding) Round(x []float32, rows, cols int) {
	if e == AsTrained {
		return
	}
	f, high := e.Format(), e.High()
	stride, blocks := f.RowBytes(cols), f.Blocks(cols)
	codes, scales := make([]byte, high*stride), make([]float32, blocks)
	for r := 0; r < rows; r += high {
		n := min(high, rows-r)
		e.Encode(codes, scales, x[r*cols:(r+n)*cols], n, cols)
		for row := range n {
			line := x[(r+row)*cols:][:cols]
			for b, s := range scales {
				run := line[b*f.Wide : min((b+1)*f.Wide, cols)]
				if f.Decode(run, codes[row*stride:], b*f.Wide, s); s != s {
					for i := range run {
						run[i] = nan
					}
				}
			}
		}
	}
}

// nan is the one NaN that encoding writes.
var nan = math.Float32frombits(0x7fc00000)
