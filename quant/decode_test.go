package quant

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// exact is a product of fp32 numbers, rounded to fp32 from one that fp64 holds.
func exact(a, b float64) float32 { return float32(a * b) }

func same(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b }

func TestDecodeFP8Blocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, c := range []struct{ rows, cols, high, wide int }{{1, 1, 128, 128}, {128, 128, 128, 128},
		{129, 300, 128, 128}, {5, 7, 2, 3}, {3, 64, 1, 128}, {40, 64, 16, 16}} {
		down, across := (c.rows+c.high-1)/c.high, (c.cols+c.wide-1)/c.wide
		codes, scales := make([]byte, c.rows*c.cols), make([]float32, down*across)
		for i := range codes {
			codes[i] = byte(rng.IntN(256))
		}
		for i := range scales {
			scales[i] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(40)-20)))
		}
		got := make([]float32, len(codes))
		DecodeFP8Blocks(got, codes, scales, c.rows, c.cols, c.high, c.wide)
		for i, code := range codes {
			want := float32(math.NaN())
			if code&0x7f != 0x7f {
				want = exact(value(int(code)), float64(scales[i/c.cols/c.high*across+i%c.cols/c.wide]))
			}
			if !same(got[i], want) {
				t.Fatalf("%v: element %d, code %#x, is %v, want %v", c, i, code, got[i], want)
			}
		}
	}
}

// Rounding a matrix gives the numbers that its codes and scales decode to.
func TestDecodeIsWhatEncodingLeaves(t *testing.T) {
	const rows, cols = 140, 135
	w := draw(rand.New(rand.NewPCG(9, 10)), rows, cols)
	across := (cols + FP8Block - 1) / FP8Block
	codes, scales := make([]byte, len(w)), make([]float32, (rows+FP8Block-1)/FP8Block*across)
	of := func(i int) int { return i/cols/FP8Block*across + i%cols/FP8Block }
	for i, x := range w {
		scales[of(i)] = max(scales[of(i)], x/MaxE4M3, -x/MaxE4M3)
	}
	for i, x := range w {
		codes[i] = byte(EncodeE4M3(x / scales[of(i)]))
	}
	got := make([]float32, len(w))
	DecodeFP8Blocks(got, codes, scales, rows, cols, FP8Block, FP8Block)
	RoundFP8Blocks(w, rows, cols)
	if !slices.Equal(got, w) {
		t.Error("decoding gives other numbers than RoundFP8Blocks")
	}
}

func TestDecodeINT4Groups(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, c := range []struct{ rows, cols, group int }{{1, 8, 32}, {3, 64, 32}, {2, 33, 32}, {4, 100, 16},
		{1, 1, 32}} {
		words, groups := (c.cols+7)/8, (c.cols+c.group-1)/c.group
		codes := make([]int, c.rows*c.cols)
		packed, scales := make([]byte, c.rows*words*4), make([]float32, c.rows*groups)
		for i := range scales {
			scales[i] = math.Float32frombits(rng.Uint32()&0x3fff0000 | rng.Uint32()&0x80000000) // a bf16
		}
		for r := range c.rows {
			row := make([]uint32, words)
			for col := range c.cols {
				code := rng.IntN(16) - 8
				codes[r*c.cols+col] = code
				row[col/8] |= uint32(code+8) << (col % 8 * 4)
			}
			for i, w := range row {
				binary.LittleEndian.PutUint32(packed[(r*words+i)*4:], w)
			}
		}
		got := make([]float32, len(codes))
		DecodeINT4Groups(got, packed, scales, c.rows, c.cols, c.group)
		for i, code := range codes {
			s := float64(scales[i/c.cols*groups+i%c.cols/c.group])
			if want := exact(float64(code), s); got[i] != want || float64(want) != float64(code)*s {
				t.Fatalf("%v: element %d, code %d, is %v, want %v", c, i, code, got[i], want)
			}
		}
	}
}

// Every code with every scale, by the standard's formulas.
func TestDecodeMXFP4(t *testing.T) {
	number := func(code int) float64 {
		sign, exponent, half := 1-2*float64(code>>3), code>>1&3, float64(code&1)/2
		if exponent == 0 {
			return sign * half
		}
		return sign * (1 + half) * math.Pow(2, float64(exponent-1))
	}
	var blocks, scales []byte
	for e := range 256 {
		scales = append(scales, byte(e))
		for b := range 16 {
			blocks = append(blocks, byte(b|(15-b)<<4))
		}
	}
	got := make([]float32, 256*MXFP4Block)
	DecodeMXFP4(got, blocks, scales)
	for i, x := range got {
		e, b := i/MXFP4Block, i%MXFP4Block/2
		code := b
		if i%2 == 1 {
			code = 15 - b
		}
		want := float32(math.Ldexp(number(code), e-127))
		if e == 255 {
			want = float32(math.NaN())
		}
		if !same(x, want) {
			t.Fatalf("code %d with scale %d is %v, want %v", code, e, x, want)
		}
		if bits := math.Float32bits(x); x == x && bits&0xffff != 0 {
			t.Fatalf("code %d with scale %d, %v, is no bf16", code, e, x)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	const rows, cols = 1024, 1024
	dst, codes, scales := make([]float32, rows*cols), make([]byte, rows*cols), make([]float32, rows*cols/32)
	for name, decode := range map[string]func(){
		"fp8":   func() { DecodeFP8Blocks(dst, codes, scales, rows, cols, 128, 128) },
		"int4":  func() { DecodeINT4Groups(dst, codes, scales, rows, cols, 32) },
		"mxfp4": func() { DecodeMXFP4(dst, codes, codes[:rows*cols/32]) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(rows * cols)
			for b.Loop() {
				decode()
			}
		})
	}
}
