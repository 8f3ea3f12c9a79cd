package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/quant"
)

// oddNumbers is a tensor of numbers of many sizes, every tie and subnormal among them, and in some blocks zeros, NaN
// and infinities.
func oddNumbers(rng *rand.Rand, d kernels.DType, groups, rows, cols, gap int) kernels.Tensor {
	t := strided(rng, d, groups, rows, cols, gap)
	inf := float32(math.Inf(1))
	for r := range groups * rows {
		for c := range cols {
			x := float32(math.Ldexp(float64(rng.IntN(64)-32), rng.IntN(12)-20))
			switch kind := (r/40 + c/40) % 8; {
			case kind == 1:
				x = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(40)-20)))
			case kind == 2:
				x = float32(math.Copysign(0, rng.Float64()-0.5))
			case kind == 3:
				x = math.Float32frombits(rng.Uint32N(1<<20) | rng.Uint32()&(1<<31))
			case kind == 4:
				x = math.Float32frombits(0x7f7fffff - rng.Uint32N(1<<24))
			case kind == 5 && rng.IntN(40) == 0:
				x = []float32{inf, -inf, math.Float32frombits(0xffc00123)}[rng.IntN(3)]
			case kind == 6:
				x = math.Float32frombits(rng.Uint32N(4) << 21)
			}
			if i := r*t.Stride + c; d == kernels.BF16 {
				t.BF16s()[i] = kernels.RoundBF16(x)
			} else {
				t.F32s()[i] = x
			}
		}
	}
	return t
}

// elements are those of a tensor in fp32, row by row.
func elements(t kernels.Tensor) (all []float32) {
	for r := range t.Groups * t.Rows {
		for c := range t.Cols {
			if i := r*t.Stride + c; t.DType == kernels.BF16 {
				all = append(all, kernels.FromBF16(t.BF16s()[i]))
			} else {
				all = append(all, t.F32s()[i])
			}
		}
	}
	return all
}

// sameNumbers compares bits with numbers that are rounded to a storage type first.
func sameNumbers(t *testing.T, name string, got kernels.Tensor, want []float32) {
	t.Helper()
	for i, x := range elements(got) {
		y := want[i]
		if got.DType == kernels.BF16 {
			y = kernels.NearestBF16(y)
		}
		if math.Float32bits(x) != math.Float32bits(y) {
			t.Fatalf("%s: element %d, %d is %v, want %v", name, i/got.Cols, i%got.Cols, x, y)
		}
	}
}

// FakeQuantize is what package quant leaves of each matrix, on every bit.
func TestFakeQuantize(t *testing.T) {
	for _, dev := range devices(t, kernels.Default()) {
		rng := rand.New(rand.NewPCG(31, 32))
		for _, e := range []quant.Encoding{quant.INT4, quant.MXFP8, quant.FP8} {
			for _, from := range []kernels.DType{kernels.F32, kernels.BF16} {
				for _, to := range []kernels.DType{kernels.F32, kernels.BF16} {
					const groups, rows, cols = 2, 171, 203
					x := oddNumbers(rng, from, groups, rows, cols, 5)
					out := strided(rng, to, groups, rows, cols, 2)
					want := elements(x)
					for g := range groups {
						e.Round(want[g*rows*cols:(g+1)*rows*cols], rows, cols)
					}
					name := fmt.Sprintf("%s: %s, %s to %s", dev.Name(), e, from, to)
					dev.FakeQuantize(out, x, e)
					sameNumbers(t, name, out, want)
					if from == to {
						dev.FakeQuantize(x, x, e)
						sameNumbers(t, name+" in place", x, want)
					}
				}
			}
		}
	}
}

// A row's blocks depend on that row alone.
func TestFakeQuantizeByRow(t *testing.T) {
	dev, rng := mustCPU(), rand.New(rand.NewPCG(33, 34))
	for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
		x := oddNumbers(rng, d, 1, 90, 131, 0)
		all, one := strided(rng, d, 1, 90, 131, 0), strided(rng, d, 1, 90, 131, 0)
		dev.FakeQuantize(all, x, quant.MXFP8)
		for r := range x.Rows {
			dev.FakeQuantize(one.RowRange(r, r+1), x.RowRange(r, r+1), quant.MXFP8)
		}
		if !slices.Equal(all.Raw(), one.Raw()) {
			t.Errorf("%s: rows one by one differ", d)
		}
	}
}

// FakeQuantizeRows is FakeQuantize of each segment of each group, transposed.
func TestFakeQuantizeRows(t *testing.T) {
	for _, dev := range devices(t, kernels.Default()) {
		rng := rand.New(rand.NewPCG(35, 36))
		for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
			offsets := []int32{0, 3, 3, 67, 99, 100, 171}
			const rows, cols = 171, 203
			g := &kernels.Groups{Offsets: kernels.WrapI32(offsets), Count: 3, Segments: 2}
			x, out := oddNumbers(rng, d, 1, rows, cols, 5), strided(rng, d, 1, rows, cols, 2)
			numbers := elements(x)
			want := make([]float32, rows*cols)
			for i, from := range offsets[:len(offsets)-1] {
				n := int(offsets[i+1] - from)
				across := make([]float32, n*cols)
				for r := range n {
					for c := range cols {
						across[c*n+r] = numbers[(int(from)+r)*cols+c]
					}
				}
				quant.MXFP8.Round(across, cols, n)
				for r := range n {
					for c := range cols {
						want[(int(from)+r)*cols+c] = across[c*n+r]
					}
				}
			}
			dev.FakeQuantizeRows(out, x, g)
			sameNumbers(t, dev.Name(), out, want)
			dev.FakeQuantizeRows(x, x, g)
			sameNumbers(t, dev.Name()+" in place", x, want)
		}
	}
}

// FakeQuantizeHeads is FakeQuantize of each head by itself, of widths that cut blocks too, and leaves what lies between
// rows.
func TestFakeQuantizeHeads(t *testing.T) {
	for _, dev := range devices(t, kernels.Default()) {
		rng := rand.New(rand.NewPCG(37, 38))
		for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
			for _, width := range []int{1, 24, 32, 48, 128} {
				const rows, heads = 70, 3
				all := oddNumbers(rng, d, 1, rows, heads*width+7, 0)
				x, want := all.ColRange(0, heads*width), elements(all)
				for at := range heads {
					head := elements(x.ColRange(at*width, (at+1)*width))
					quant.MXFP8.Round(head, rows, width)
					for r := range rows {
						copy(want[r*all.Cols+at*width:], head[r*width:(r+1)*width])
					}
				}
				dev.FakeQuantizeHeads(x, width)
				sameNumbers(t, fmt.Sprintf("%s: %s, heads of %d", dev.Name(), d, width), all, want)
			}
		}
	}
}

func BenchmarkFakeQuantize(b *testing.B) {
	dev, rng := mustCPU(), rand.New(rand.NewPCG(1, 2))
	x := strided(rng, kernels.F32, 1, 256, 2048, 0)
	out, w, y := strided(rng, kernels.F32, 1, 256, 2048, 0), strided(rng, kernels.F32, 1, 1024, 2048, 0),
		strided(rng, kernels.F32, 1, 256, 1024, 0)
	one := &kernels.Groups{Offsets: kernels.WrapI32([]int32{0, 256}), Count: 1, Segments: 1}
	for name, op := range map[string]func(){
		"copy":    func() { dev.Copy(out, x) },
		"columns": func() { dev.FakeQuantize(out, x, quant.MXFP8) },
		"rows":    func() { dev.FakeQuantizeRows(out, x, one) },
		"product": func() { dev.MatMul(y, nil, kernels.Term{X: x, W: w}) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				op()
			}
		})
	}
}
