package quant

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// codesOf are the numbers of all codes of an encoding that it writes, without their scale.
func codesOf(e Encoding) (all []float64) {
	switch e {
	case INT4:
		for q := -7; q <= 7; q++ {
			all = append(all, float64(q))
		}
	case MXFP4:
		for _, v := range []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6} {
			all = append(all, v, -v)
		}
	default:
		for code := range 256 {
			if code&0x7f != 0x7f {
				all = append(all, value(code))
			}
		}
	}
	return all
}

// scaleBySearch is the scale of a block by the definition's words.
func scaleBySearch(e Encoding, amax float64) float64 {
	switch e {
	case INT4:
		return float64(roundBF16(float32(amax) / 7))
	case FP8, FP8x128:
		return float64(float32(amax) / 448)
	}
	largest := map[Encoding]float64{MXFP4: 6, MXFP8: 448}[e]
	for x := -127; ; x++ {
		if amax <= largest*math.Ldexp(1, x) {
			return math.Ldexp(1, x)
		}
	}
}

// blockOf is the first row and column of an element's block, and those behind its last.
func blockOf(e Encoding, r, c, rows, cols int) (top, left, bottom, right int) {
	high, wide := e.High(), e.Format().Wide
	top, left = r/high*high, c/wide*wide
	return top, left, min(top+high, rows), min(left+wide, cols)
}

// Every number becomes the nearest of all codes times its block's scale, which comes from the block's largest magnitude
// alone.
func TestEncode(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, e := range append(slices.Clone(Encodings), FP8x128) {
		all := codesOf(e)
		for _, shape := range [][2]int{{1, 1}, {3, 31}, {5, 32}, {2, 100}, {129, 130}, {140, 257}} {
			rows, cols := shape[0], shape[1]
			x := make([]float32, rows*cols)
			for i := range x {
				x[i] = float32(rng.NormFloat64() * math.Exp2(float64(i/cols/64-i%cols/40)))
			}
			got := slices.Clone(x)
			e.Round(got, rows, cols)
			for i, v := range x {
				top, left, bottom, right := blockOf(e, i/cols, i%cols, rows, cols)
				amax := 0.0
				for r := top; r < bottom; r++ {
					for _, y := range x[r*cols+left : r*cols+right] {
						amax = max(amax, math.Abs(float64(y)))
					}
				}
				s := scaleBySearch(e, amax)
				quotient := float64(float32(float64(v) / s))
				best := math.Inf(1)
				for _, q := range all {
					best = min(best, math.Abs(quotient-q))
				}
				chosen := float64(got[i]) / s
				if off := math.Abs(quotient - chosen); off > best+1e-6*math.Abs(chosen) {
					t.Fatalf("%s of %v: %v became %v, %v scales away, the nearest code is %v away", e, shape, v,
						got[i], off, best)
				}
			}
		}
	}
}

// Half way between two codes the even one is taken. The block's largest number makes the scale 1.
func TestEncodeTies(t *testing.T) {
	for e, ties := range map[Encoding][][2]float32{
		INT4:  {{0.5, 0}, {1.5, 2}, {2.5, 2}, {-0.5, 0}, {-1.5, -2}, {6.5, 6}},
		MXFP4: {{0.25, 0}, {0.75, 1}, {1.25, 1}, {1.75, 2}, {2.5, 2}, {3.5, 4}, {5, 4}, {-5, -4}},
		MXFP8: {{17, 16}, {19, 20}, {1.0625, 1}, {432, 448}, {1.0 / 1024, 0}},
		FP8:   {{17, 16}, {19, 20}, {1.0625, 1}, {432, 448}, {1.0 / 1024, 0}},
	} {
		for _, c := range ties {
			x := []float32{map[Encoding]float32{INT4: 7, MXFP4: 6, MXFP8: 448, FP8: 448}[e], c[0]}
			if e.Round(x, 1, 2); x[1] != c[1] {
				t.Errorf("%s: %v became %v, want %v", e, c[0], x[1], c[1])
			}
		}
	}
}

// MX scales never clip: the largest number of a block is at most the largest code, at every significand and exponent.
func TestLeastPower(t *testing.T) {
	for _, e := range []Encoding{MXFP4, MXFP8} {
		largest := map[Encoding]float32{MXFP4: 6, MXFP8: 448}[e]
		for exponent := -149; exponent <= 127; exponent++ {
			for _, m := range []float64{1, 1.5, math.Nextafter(1.5, 2), 1.75, 1.7500001, 1.9999999} {
				amax := float32(math.Ldexp(m, exponent))
				if s := e.scale(amax); float64(s) != scaleBySearch(e, float64(amax)) {
					t.Errorf("%s: amax %g has scale %g, want %g", e, amax, s, scaleBySearch(e, float64(amax)))
				}
			}
			at := float32(math.Ldexp(float64(largest), exponent))
			above := math.Nextafter32(at, float32(math.Inf(1)))
			if e.scale(at) > 1e-30 && !math.IsInf(float64(above), 0) && e.scale(above) != 2*e.scale(at) {
				t.Errorf("%s: the number above %g has the same scale", e, at)
			}
		}
	}
}

func TestEncodeOddNumbers(t *testing.T) {
	inf, negative := float32(math.Inf(1)), float32(math.Copysign(0, -1))
	odd, least := math.Float32frombits(0xff812345), float32(math.SmallestNonzeroFloat32)
	for _, e := range Encodings {
		for _, x := range [][]float32{{0, negative}, {1, inf, -2}, {-inf}, {3, odd}, {0, odd}, {least, 0}} {
			got := slices.Clone(x)
			e.Round(got, 1, len(got))
			finite := !slices.ContainsFunc(x, func(v float32) bool { return v-v != 0 })
			for _, y := range got {
				if finite && math.Float32bits(y) != 0 || !finite && math.Float32bits(y) != math.Float32bits(nan) {
					t.Errorf("%s: %v became %v", e, x, got)
				}
			}
		}
	}
}

// MX formats encode their own numbers to themselves: scales are the same or codes move to finer ones of equal value.
func TestMXTwice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	for _, e := range []Encoding{MXFP4, MXFP8} {
		x := make([]float32, 64*96)
		for i := range x {
			x[i] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(30))))
		}
		e.Round(x, 64, 96)
		again := slices.Clone(x)
		if e.Round(again, 64, 96); !slices.Equal(x, again) {
			t.Errorf("%s: numbers of codes change when they are encoded again", e)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	x := make([]float32, 1024*1024)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	for _, e := range Encodings {
		codes, scales := make([]byte, len(x)), make([]float32, len(x))
		b.Run(fmt.Sprint(e), func(b *testing.B) {
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				e.Encode(codes, scales, x, 1024, 1024)
			}
		})
	}
}

// A block of FP8 is a square: a small number has the scale of a large one in the row above, and none of what follows
// behind 128 rows.
func TestFP8Squares(t *testing.T) {
	const rows = 129
	x := make([]float32, rows)
	x[0], x[1], x[rows-1] = 896, 1e-3, 1e-3
	FP8.Round(x, rows, 1)
	if x[0] != 896 || x[1] != 0 || math.Abs(float64(x[rows-1])-1e-3) > 1e-6 {
		t.Errorf("896, 1e-3 and 1e-3 behind the block are %v, %v and %v", x[0], x[1], x[rows-1])
	}
	x[0], x[1] = 896, 1e-3
	if FP8x128.Round(x, rows, 1); x[0] != 896 || math.Abs(float64(x[1])-1e-3) > 1e-6 {
		t.Errorf("of rows that are blocks 896 and 1e-3 are %v and %v", x[0], x[1])
	}
}
