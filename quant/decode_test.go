package quant

import (
	"fmt"
	"math"
	"testing"
)

// numberOf is a code's number, by the standards' formulas.
func numberOf(c Code, code int) float64 {
	switch c {
	case CodeINT4:
		return float64(code) - 8
	case CodeE4M3:
		if code&0x7f == 0x7f {
			return math.NaN()
		}
		return value(code)
	case CodeNF4:
		return float64(NF4[code]) // held against bitsandbytes by what it has saved
	}
	sign, exponent, half := 1-2*float64(code>>3), code>>1&3, float64(code&1)/2
	if exponent == 0 {
		return sign * half
	}
	return sign * (1 + half) * math.Pow(2, float64(exponent-1))
}

// Every code with every power of two, and with scales that round: code * scale rounded to fp32 once, wherever a run
// begins and ends.
func TestDecode(t *testing.T) {
	var scales []float32
	for e := range 256 {
		scales = append(scales, PowerOfTwo(byte(e)))
	}
	scales = append(scales, 0.1, 1.0/3, 3e-39, -7, 1e37, float32(math.Pi))
	for _, c := range []Code{CodeINT4, CodeE2M1, CodeE4M3, CodeNF4} {
		f := Format{Code: c, Wide: 32}
		n := 1 << c.Bits()
		row := make([]byte, f.RowBytes(n))
		for code := range n {
			row[code*c.Bits()/8] |= byte(code) << (code * c.Bits() % 8)
		}
		for _, s := range scales {
			for _, run := range [][2]int{{0, n}, {1, n}, {0, n - 1}, {3, 4}, {5, 5}} {
				got := make([]float32, run[1]-run[0])
				f.Decode(got, row, run[0], s)
				for i, x := range got {
					want := float32(numberOf(c, run[0]+i) * float64(s))
					if math.Float32bits(x) != math.Float32bits(want) && (x == x || want == want) {
						t.Fatalf("%s: code %d with scale %g is %g, want %g", c, run[0]+i, s, x, want)
					}
				}
			}
		}
	}
}

func TestPowersOfTwo(t *testing.T) {
	for e := range 255 {
		s := PowerOfTwo(byte(e))
		if float64(s) != math.Ldexp(1, e-127) {
			t.Errorf("scale %d is %g", e, s)
		}
		if back, ok := EncodePowerOfTwo(s); !ok || back != byte(e) {
			t.Errorf("%g is scale %d, %t, want %d", s, back, ok, e)
		}
	}
	for _, s := range []float32{0, -1, 3, 0.1, float32(math.Inf(1)), float32(math.NaN()), math.SmallestNonzeroFloat32} {
		if e, ok := EncodePowerOfTwo(s); ok {
			t.Errorf("%g is scale %d", s, e)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	dst := make([]float32, 1<<20)
	for _, e := range Encodings {
		f := e.Format()
		codes := make([]byte, f.RowBytes(len(dst)))
		b.Run(fmt.Sprint(e), func(b *testing.B) {
			b.SetBytes(int64(4 * len(dst)))
			for b.Loop() {
				for at := 0; at < len(dst); at += f.Wide {
					f.Decode(dst[at:at+f.Wide], codes, at, 0.5)
				}
			}
		})
	}
}
