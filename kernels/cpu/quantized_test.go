package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"lockstep/kernels"
	"lockstep/quant"
)

// quantizedFormats are one of each code and each type of scale that releases have, and some odd blocks.
var quantizedFormats = []quant.Format{
	{Code: quant.CodeINT4, Scale: quant.ScaleBF16, Wide: 32}, {Code: quant.CodeINT4, Scale: quant.ScaleF32, Wide: 5},
	{Code: quant.CodeE2M1, Scale: quant.ScaleE8M0, Wide: 32}, {Code: quant.CodeE4M3, Scale: quant.ScaleE8M0, Wide: 32},
	{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 128},
	{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 1 << 20},
}

// randomQuantized is a weight of random codes, none of them NaN, and scales of many sizes.
func randomQuantized(rng *rand.Rand, f quant.Format, d kernels.DType, groups, rows, cols int) kernels.QuantizedWeight {
	w := kernels.NewQuantizedWeight(f, d, groups, rows, cols, onHeap)
	for i := range w.Codes.Raw() {
		c := byte(rng.Uint32())
		if f.Code == quant.CodeE4M3 && c&0x7f == 0x7f {
			c--
		}
		w.Codes.Raw()[i] = c
	}
	for i := range w.Scales.Len() {
		s := float32(math.Ldexp(1+rng.Float64(), rng.IntN(12)-12))
		switch f.Scale {
		case quant.ScaleE8M0:
			w.Scales.Raw()[i] = byte(rng.IntN(12) + 115)
		case quant.ScaleBF16:
			w.Scales.BF16s()[i] = kernels.RoundBF16(s)
		default:
			w.Scales.F32s()[i] = s
		}
	}
	return w
}

// onHeap is a contiguous tensor that is freed with the last use of it; an arena takes 64 MiB until its device ends.
func onHeap(d kernels.DType, groups, rows, cols int) kernels.Tensor {
	raw := make([]uint64, (groups*rows*cols*d.Size()+7)/8+1)
	return kernels.Tensor{Data: unsafe.Pointer(unsafe.SliceData(raw)), DType: d, Groups: groups, Rows: rows, Cols: cols,
		Stride: cols}
}

func mustCPU() *Device {
	d, err := New(kernels.Default(), Options{Threads: 1})
	if err != nil {
		panic(err)
	}
	return d
}

// numbersOf decodes a weight from the description of its format, element by element.
func numbersOf(w kernels.QuantizedWeight) kernels.Tensor {
	e4m3 := func(c byte) float64 {
		if c>>3&15 == 0 {
			return math.Ldexp(float64(c&7), -9)
		}
		return math.Ldexp(8+float64(c&7), int(c>>3&15)-10)
	}
	out := onHeap(w.DType, w.Groups, w.Rows, w.Cols)
	for i := range out.Len() {
		g, r, c := i/w.Cols/w.Rows, i/w.Cols%w.Rows, i%w.Cols
		line := w.Codes.Raw()[(g*w.Rows+r)*w.Codes.Cols:]
		nibble := line[c*w.Format.Code.Bits()/8] >> (4 * (c & 1)) & 15
		var code float64
		switch w.Format.Code {
		case quant.CodeINT4:
			code = float64(nibble) - 8
		case quant.CodeE2M1:
			code = []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[nibble&7] * (1 - 2*float64(nibble>>3))
		default:
			code = e4m3(line[c]&0x7f) * (1 - 2*float64(line[c]>>7))
		}
		at := (g*w.Scales.Rows+c/w.Format.Wide)*w.Rows + r
		var scale float64
		switch w.Format.Scale {
		case quant.ScaleE8M0:
			scale = math.Ldexp(1, int(w.Scales.Raw()[at])-127)
		case quant.ScaleBF16:
			scale = float64(kernels.FromBF16(w.Scales.BF16s()[at]))
		default:
			scale = float64(w.Scales.F32s()[at])
		}
		if x := float32(code * scale); w.DType == kernels.BF16 {
			out.BF16s()[i] = kernels.RoundBF16(x)
		} else {
			out.F32s()[i] = x
		}
	}
	return out
}

// A product with codes is the product with the numbers that they stand for, on every bit: both directions, groups,
// empty ones too, a further term, every instruction set.
func TestQuantizedProducts(t *testing.T) {
	for _, c := range []struct {
		dot kernels.DotMode
		d   kernels.DType
	}{{kernels.DotFMA, kernels.F32}, {kernels.DotFMA, kernels.BF16}, {kernels.DotTC16, kernels.BF16}} {
		def := kernels.Default()
		def.Dot = c.dot
		for _, dev := range devices(t, def) {
			rng := rand.New(rand.NewPCG(18, uint64(c.d)))
			for round, f := range quantizedFormats {
				for _, shape := range [][3]int{{1, 70, 96}, {3, 17, 300}, {2, 130, 64}} {
					groups, n, k := shape[0], shape[1]+round, shape[2]
					w := randomQuantized(rng, f, c.d, groups, n, k)
					numbers := numbersOf(w)
					name := fmt.Sprintf("%s, %s, %s, %v", dev.Name(), c.dot, f, shape)
					if got := dequantized(dev, w); !slices.Equal(got.Raw(), numbers.Raw()) {
						t.Fatalf("%s: Dequantize differs", name)
					}
					const rows = 37
					offsets := kernels.WrapI32([]int32{0, 20, 20, rows}[:groups+1])
					offsets.I32s()[groups] = rows
					g := &kernels.Groups{Offsets: offsets, Count: groups, Segments: 1}
					x, dy := strided(rng, c.d, 1, rows, k, 3), strided(rng, c.d, 1, rows, n, 0)
					u, b := strided(rng, c.d, 1, rows, 16, 0), strided(rng, c.d, groups, 8, 16, 0)
					a := strided(rng, c.d, groups, 16, k, 0)
					up := kernels.Term{X: u, W: b, From: 4, To: 12}
					check := func(op string, cols int, product func(out kernels.Tensor, base kernels.Term),
						operand kernels.Tensor) {
						want, got := strided(rng, c.d, 1, rows, cols, 0), strided(rng, c.d, 1, rows, cols, 0)
						product(want, kernels.Term{X: operand, W: numbers})
						product(got, kernels.Term{X: operand, Q: &w})
						if !slices.Equal(want.Raw(), got.Raw()) {
							t.Errorf("%s: %s differs", name, op)
						}
					}
					check("MatMul", n, func(out kernels.Tensor, base kernels.Term) { dev.MatMul(out, g, base, up) }, x)
					check("MatMulT", k, func(out kernels.Tensor, base kernels.Term) {
						dev.MatMulT(out, g, base, kernels.Term{X: u, W: a})
					}, dy)
				}
			}
		}
	}
}

func dequantized(d *Device, w kernels.QuantizedWeight) kernels.Tensor {
	out := onHeap(w.DType, w.Groups, w.Rows, w.Cols)
	d.Dequantize(out, w)
	return out
}

// Products see a swapped nibble, and the scale of a neighbour.
func TestQuantizedProductsCanFail(t *testing.T) {
	dev, rng := mustCPU(), rand.New(rand.NewPCG(1, 2))
	w := randomQuantized(rng, quantizedFormats[0], kernels.F32, 1, 16, 64)
	x := strided(rng, kernels.F32, 1, 4, 64, 0)
	product := func() []byte {
		out := strided(rng, kernels.F32, 1, 4, 16, 0)
		dev.MatMul(out, nil, kernels.Term{X: x, Q: &w})
		return out.Raw()
	}
	before := product()
	w.Codes.Raw()[5] = 0x18
	other := product()
	w.Codes.Raw()[5] = 0x81
	if slices.Equal(other, product()) || slices.Equal(before, other) {
		t.Error("swapped nibbles change nothing")
	}
	scales := w.Scales.BF16s()
	scales[0], scales[1] = scales[1], scales[0]
	if slices.Equal(other, product()) {
		t.Error("another row's scale changes nothing")
	}
}

func BenchmarkQuantizedProduct(b *testing.B) {
	dev, rng := mustCPU(), rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1024, 4096} { // within the cache, and not
		terms := map[string]kernels.Term{"fp32": {W: strided(rng, kernels.F32, 1, n, n, 0)}}
		for _, f := range quantizedFormats {
			w := randomQuantized(rng, f, kernels.F32, 1, n, n)
			terms[f.String()] = kernels.Term{Q: &w}
		}
		for _, rows := range []int{1, 8, 64} {
			x, out := strided(rng, kernels.F32, 1, rows, n, 0), strided(rng, kernels.F32, 1, rows, n, 0)
			for name, term := range terms {
				term.X = x
				b.Run(fmt.Sprintf("%d, %d rows, %s", n, rows, name), func(b *testing.B) {
					for b.Loop() {
						dev.MatMul(out, nil, term)
					}
				})
			}
		}
	}
}

// Quantize is the encoder of package quant on each part of each matrix.
func TestQuantize(t *testing.T) {
	for _, dev := range devices(t, kernels.Default()) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, e := range quant.Encodings {
			const groups, rows, cols = 3, 300, 100
			starts := []int{0, 140, 141}
			x := strided(rng, kernels.F32, groups, rows, cols, 0)
			w := kernels.NewQuantizedWeight(e.Format(), kernels.F32, groups, rows, cols,
				onHeap)
			dev.Quantize(w, x, e, starts)
			want := slices.Clone(x.F32s()[:x.Len()])
			for g := range groups {
				for i, from := range starts {
					to := append(starts, rows)[i+1]
					e.Round(want[(g*rows+from)*cols:(g*rows+to)*cols], to-from, cols)
				}
			}
			if got := dequantized(dev, w); !slices.Equal(got.F32s(), want) {
				t.Errorf("%s: %s differs", dev.Name(), e)
			}
			whole := slices.Clone(x.F32s()[:x.Len()])
			for g := range groups {
				e.Round(whole[g*rows*cols:(g+1)*rows*cols], rows, cols)
			}
			if slices.Equal(whole, want) != (e.High() == 1) {
				t.Errorf("%s: blocks that begin anew with each part are noticed: %t", e, e.High() == 1)
			}
		}
	}
}

// Rows in codes are those of package quant, and a grouped product of codes is that of each group's rows alone, which a
// term behind it continues.
func TestProductsOfCodes(t *testing.T) {
	def := kernels.Default()
	def.Dot = kernels.DotTC16
	rng := rand.New(rand.NewPCG(18, 128))
	const rows, n, k, groups = 23, 70, 300, 3
	e := quant.FP8x128
	x, w := strided(rng, kernels.BF16, 1, rows, k, 3), randomQuantized(rng, e.Format(), kernels.BF16, groups, n, k)
	u, b := strided(rng, kernels.BF16, 1, rows, 16, 0), strided(rng, kernels.BF16, groups, 8, 16, 0)
	bounds := []int32{0, 9, 9, rows}
	for _, dev := range devices(t, def) {
		encode := func(x kernels.Tensor) kernels.QuantizedWeight {
			q := kernels.NewQuantizedWeight(e.Format(), kernels.BF16, 1, x.Rows, k, onHeap)
			dev.QuantizeRows(q, x)
			return q
		}
		q := encode(x)
		for r := range rows {
			row, got := make([]float32, k), make([]float32, k)
			for i := range row {
				row[i] = kernels.FromBF16(x.BF16s()[r*x.Stride+i])
			}
			e.Round(row, 1, k)
			for i := range row {
				row[i] = kernels.NearestBF16(row[i])
			}
			if q.DecodeRow(got, r, 0); !slices.Equal(got, row) {
				t.Fatalf("%s: row %d in codes is %v, want %v", dev.Name(), r, got, row)
			}
		}
		got, want := strided(rng, kernels.BF16, 1, rows, n, 0), strided(rng, kernels.BF16, 1, rows, n, 0)
		terms := func(q kernels.QuantizedWeight, w kernels.QuantizedWeight, u, b kernels.Tensor) []kernels.Term {
			return []kernels.Term{{X: q.Shape(), XQ: &q, Q: &w}, {X: u, W: b, From: 4, To: 12}}
		}
		dev.MatMul(got, &kernels.Groups{Offsets: kernels.WrapI32(bounds), Count: groups, Segments: 1},
			terms(q, w, u, b)...)
		for g := range groups {
			from, to := int(bounds[g]), int(bounds[g+1])
			dev.MatMul(want.RowRange(from, to), nil, terms(encode(x.RowRange(from, to)), w.Group(g),
				u.RowRange(from, to), b.Group(g))...)
		}
		if !slices.Equal(got.Raw(), want.Raw()) {
			t.Errorf("%s: a grouped product of codes differs from those of its groups", dev.Name())
		}
	}
}
