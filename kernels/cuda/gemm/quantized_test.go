//go:build cuda

package gemm

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
	"lockstep/quant"
)

// forcingQuantized runs body with each path of products with weights in codes.
func forcingQuantized(body func(path string)) {
	d := cudatest.GPU
	defer func() { d.Path = "" }()
	for _, p := range append([]string{"portable", ""}, QuantizedPaths...) {
		d.Path = p
		body(p)
	}
}

// quantizedCase is products with a weight in codes [groups, n, k] of m rows, with adapters: forward for some columns
// each, backward one.
type quantizedCase struct {
	f               quant.Format
	groups, m, n, k int
	ranges          [][2]int // of adapters
}

const rank = 16

func (c quantizedCase) String() string {
	return fmt.Sprintf("%s, %d groups, %d rows, [%d, %d], adapters %v", c.f, c.groups, c.m, c.n, c.k, c.ranges)
}

// products compares both directions on both devices by each path.
func (c quantizedCase) products(t *testing.T, segments int) {
	t.Helper()
	q := cudatest.RandomQuantized(c.f, kernels.BF16, c.groups, c.n, c.k)
	x := []cudatest.Operand{padded(1, c.m, c.n), padded(1, c.m, c.k), q.Codes, q.Scales,
		randomOffsets(c.groups*segments, c.m), padded(1, c.m, c.k), padded(1, c.m, c.n), padded(1, c.m, rank),
		padded(c.groups, rank, c.k)}
	adapters := len(x)
	for _, r := range c.ranges {
		x = append(x, padded(1, c.m, rank), padded(c.groups, r[1]-r[0], rank))
	}
	forcingQuantized(func(path string) {
		cudatest.Both(t, fmt.Sprintf("%s: %s", path, c), x, func(d kernels.Device, x []kernels.Tensor) {
			var g *kernels.Groups
			if c.groups > 1 {
				g = &kernels.Groups{Offsets: x[4], Count: c.groups, Segments: segments}
			}
			w := q.On(x[2], x[3])
			terms := []kernels.Term{{X: x[1], Q: w}}
			for i, r := range c.ranges {
				terms = append(terms, kernels.Term{X: x[adapters+2*i], W: x[adapters+2*i+1], From: r[0], To: r[1]})
			}
			d.MatMul(x[0], g, terms...)
			back := []kernels.Term{{X: x[6], Q: w}}
			if len(c.ranges) > 0 {
				back = append(back, kernels.Term{X: x[7], W: x[8]})
			}
			d.MatMulT(x[5], g, back...)
		})
	})
}

// quantizedFormats are those of releases, one of whose rows share a scale, and NF4, which only Dequantize knows.
var quantizedFormats = []quant.Format{
	{Code: quant.CodeINT4, Scale: quant.ScaleBF16, Wide: 32}, quant.FormatNF4(64),
	{Code: quant.CodeE2M1, Scale: quant.ScaleE8M0, Wide: 32}, {Code: quant.CodeE4M3, Scale: quant.ScaleE8M0, Wide: 32},
	{Code: quant.CodeE4M3, Scale: quant.ScaleE8M0, Wide: 128},
	{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 128},
	{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 1 << 20},
}

func TestQuantizedProducts(t *testing.T) {
	for _, f := range quantizedFormats {
		for _, c := range []quantizedCase{
			{f, 1, 1, 16, 32, nil}, {f, 1, 9, 72, 96, [][2]int{{0, 72}}},
			{f, 3, 90, 144, 352, [][2]int{{0, 64}, {64, 144}}}, {f, 1, 33, 57, 100, nil},
			{f, 5, 140, 136, 64, [][2]int{{3, 80}}}, {f, 1, 281, 272, 96, nil},
			{f, 4, 100, 176, 64, [][2]int{{16, 80}, {80, 176}}}, {f, 2, 24, 136, 288, [][2]int{{0, 136}}},
			{f, 1, 20, 72, 1216, [][2]int{{0, 72}}}, // steps of 128 k: more than teams and slots
		} {
			c.products(t, 1+len(c.ranges))
		}
	}
}

// A block has many tiles of a stage each: what it is told of one lies there until all warps have read it.
func TestQuantizedManyTiles(t *testing.T) {
	d := cudatest.GPU
	defer func(before int) { d.Processors = before }(d.Processors)
	d.Processors = 1
	f := quant.Format{Code: quant.CodeE2M1, Scale: quant.ScaleE8M0, Wide: 32}
	quantizedCase{f, 20, 180, 528, 64, nil}.products(t, 1)
}

// More groups than shared memory has room for, next to a tile that waits to be stored, have another kernel.
func TestQuantizedManyGroups(t *testing.T) {
	const groups, rows, n, k = 1016, 25 * 1016, 16, 32
	q := cudatest.RandomQuantized(quantizedFormats[0], kernels.BF16, groups, n, k)
	x := []cudatest.Operand{padded(1, rows, n), padded(1, rows, k), q.Codes, q.Scales, randomOffsets(groups, rows)}
	cudatest.Both(t, "1,016 groups", x, func(d kernels.Device, x []kernels.Tensor) {
		d.MatMul(x[0], &kernels.Groups{Offsets: x[4], Count: groups, Segments: 1},
			kernels.Term{X: x[1], Q: q.On(x[2], x[3])})
	})
}

// Numbers that are none and infinite ones have the bits of the definition.
func TestQuantizedNaN(t *testing.T) {
	const rows, n, k = 41, 40, 96
	for _, f := range []quant.Format{{Code: quant.CodeINT4, Scale: quant.ScaleBF16, Wide: 32},
		{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 128}} {
		q, x := cudatest.RandomQuantized(f, kernels.BF16, 2, n, k), padded(1, rows, k)
		for i, b := range []uint16{0xffff, 0x7f80, 0xff80, 0x7f81} {
			binary.LittleEndian.PutUint16(x.Raw[2*(i*11*x.Stride+i*20):], b)
		}
		operands := []cudatest.Operand{padded(1, rows, n), x, q.Codes, q.Scales, randomOffsets(2, rows)}
		forcingQuantized(func(path string) {
			cudatest.Both(t, fmt.Sprint(path, " ", f), operands, func(d kernels.Device, x []kernels.Tensor) {
				d.MatMul(x[0], &kernels.Groups{Offsets: x[4], Count: 2, Segments: 1},
					kernels.Term{X: x[1], Q: q.On(x[2], x[3])})
			})
		})
	}
}

// Several weights in codes in one product.
func TestQuantizedTerms(t *testing.T) {
	f := quant.Format{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 128}
	const groups, rows, n, k = 3, 33, 24, 136
	a := cudatest.RandomQuantized(f, kernels.BF16, groups, n, k)
	b := cudatest.RandomQuantized(f, kernels.BF16, groups, n, k)
	x := []cudatest.Operand{padded(1, rows, n), padded(1, rows, k), a.Codes, a.Scales, b.Codes, b.Scales,
		randomOffsets(groups, rows)}
	forcingQuantized(func(path string) {
		cudatest.Both(t, path, x, func(d kernels.Device, x []kernels.Tensor) {
			d.MatMul(x[0], &kernels.Groups{Offsets: x[6], Count: groups, Segments: 1},
				kernels.Term{X: x[1], Q: a.On(x[2], x[3])}, kernels.Term{X: x[1], Q: b.On(x[4], x[5])})
		})
	})
}

// Groups whose numbers do not fit the workspace together are dequantized some at a time.
func TestDequantizedSomeGroups(t *testing.T) {
	f := quant.Format{Code: quant.CodeINT4, Scale: quant.ScaleBF16, Wide: 32}
	defer func(before int) { numbersBytes = before }(numbersBytes)
	c := quantizedCase{f, 5, 90, 72, 64, [][2]int{{0, 72}}}
	for _, numbersBytes = range []int{1, 2 * 72 * 64 * 2, 3 * 72 * 64 * 2} {
		c.products(t, 2)
	}
}

// finite tells whether every code times a scale is a finite number.
func finite(f quant.Format, raw []byte) bool {
	most := map[quant.Code]float64{quant.CodeINT4: 8, quant.CodeE2M1: 6, quant.CodeE4M3: 448}[f.Code]
	var s float64
	switch f.Scale {
	case quant.ScaleE8M0:
		s = math.Ldexp(1, int(raw[0])-127)
	case quant.ScaleBF16:
		s = float64(kernels.FromBF16(binary.LittleEndian.Uint16(raw)))
	default:
		s = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw)))
	}
	return math.Abs(s)*most < math.MaxFloat32*(1-1./256)
}

// Products with the identity give the numbers: every code with every scale whose numbers are finite, by a kernel of
// each way to read codes. A group has 192 rows, in the order of their scales and then in any order: a warp's are all
// small, all large or mixed.
func TestQuantizedEveryCode(t *testing.T) {
	defer func() { cudatest.GPU.Path = "" }()
	for _, f := range quantizedFormats {
		if f.Code == quant.CodeNF4 {
			continue // has no kernel of its own
		}
		size, all := kernels.ScaleType(f.Scale).Size(), [][]byte(nil)
		for raw := everyScale(f.Scale); len(raw) > 0; raw = raw[size:] {
			if finite(f, raw) {
				all = append(all, raw[:size])
			}
		}
		const rows = 192 // a group, so that no format has more groups than mostLeft
		for range rows + (rows-len(all)%rows)%rows {
			all = append(all, all[cudatest.Rand.IntN(len(all))])
		}
		groups, codes := len(all)/rows, everyCode(f.Code)
		q := cudatest.NewQuantized(f, kernels.BF16, groups, rows, len(codes)*8/f.Code.Bits())
		for g := range groups {
			for range rows {
				q.Codes.Raw = append(q.Codes.Raw, codes...)
			}
			for range q.Scales.Rows {
				for _, s := range all[g*rows:][:rows] {
					q.Scales.Raw = append(q.Scales.Raw, s...)
				}
			}
		}
		k := q.Shape.Cols
		paths := []string{"codes_several", "codes_some", "codes_square", "codes_alone"}
		checkIdentity(t, q, k, groups, paths, func(d kernels.Device, out, x kernels.Tensor, g *kernels.Groups,
			w *kernels.QuantizedWeight) {
			d.MatMul(out, g, kernels.Term{X: x, Q: w})
		})
		checkIdentity(t, q, rows, groups, []string{"codes_square", "codes_wide"}, func(d kernels.Device,
			out, x kernels.Tensor, g *kernels.Groups, w *kernels.QuantizedWeight) {
			d.MatMulT(out, g, kernels.Term{X: x, Q: w})
		})
	}
}

// checkIdentity compares products of n rows a group, which are the identity, by some paths.
func checkIdentity(t *testing.T, q cudatest.Quantized, n, groups int, paths []string, product func(d kernels.Device,
	out, x kernels.Tensor, g *kernels.Groups, w *kernels.QuantizedWeight)) {
	t.Helper()
	x := cudatest.Operand{DType: kernels.BF16, Groups: 1, Rows: groups * n, Cols: n, Stride: n,
		Raw: make([]byte, groups*n*n*2)}
	offsets := make([]int32, groups+1)
	for i := range groups * n {
		binary.LittleEndian.PutUint16(x.Raw[(i*n+i%n)*2:], kernels.RoundBF16(1))
		offsets[i/n+1] = int32(i + 1)
	}
	out := cudatest.Grouped(kernels.BF16, 1, groups*n, q.Shape.Rows+q.Shape.Cols-n, q.Shape.Rows+q.Shape.Cols-n, 1)
	for _, p := range paths {
		cudatest.GPU.Path = p
		cudatest.Both(t, fmt.Sprint(p, " ", q.Shape.Format), []cudatest.Operand{out, x, q.Codes, q.Scales,
			cudatest.Ints(1, groups+1, offsets)}, func(d kernels.Device, x []kernels.Tensor) {
			product(d, x[0], x[1], &kernels.Groups{Offsets: x[4], Count: groups, Segments: 1}, q.On(x[2], x[3]))
		})
	}
}

// Shared memory holds the ring, the table of the most groups and what kernels declare themselves, 2,048 bytes.
func TestCodesFit(t *testing.T) {
	for _, format := range quantizedFormats {
		f, ok := codesFormatOf(format, 2048)
		if !ok {
			continue // has no kernel of its own
		}
		for _, s := range codesTilings["nt"] {
			if n := s.shared("nt", f, mostLeft) + 2048; n > driver.MaxShared {
				t.Errorf("%s%s: %d bytes with %d groups, %d are there", f.name, s, n, mostLeft, driver.MaxShared)
			}
		}
	}
}

// The variants that were the fastest on an H100 or, of few rows, an H200 for the shapes of bench.QuantizedCases; of one
// group's heights those that were predicted to be.
func TestCodesTilings(t *testing.T) {
	d := &Ops{Context: &driver.Context{Processors: 132}}
	for _, c := range []struct {
		layout                string
		groups, rows, columns int
		want                  codesTiling
	}{
		{"nt", 32, 32864, 7168, codesWide},
		{"nn", 128, 33216, 768, codesWide},
		{"nt", 128, 1024, 1536, codesSeveral},
		{"nt", 128, 1024, 2048, codesSeveral},
		{"nt", 128, 2048, 1536, codesSeveral},
		{"nt", 128, 2048, 2048, codesSeveral},
		{"nt", 128, 4096, 1536, codesSome},
		{"nt", 128, 8192, 1536, codesSome},
		{"nt", 1, 64, 4096, codesAlone.of(32)},
		{"nt", 1, 250, 512, codesAlone.of(16)},
		{"nt", 1, 250, 2048, codesAlone},
		{"nt", 1, 250, 4096, codesTall},
		{"nn", 1, 250, 4096, codesSquare.of(64)},
		{"nt", 1, 160, 5120, codesSquare.of(64)},
		{"nt", 1, 250, 5120, codesSquare.of(96)},
		{"nt", 1, 512, 4096, codesSquare},
		{"nt", 128, 12288, 1536, codesSquare},
		{"nn", 128, 1024, 1536, codesSquare},
		{"nt", 1, 32, 4096, codesThin},
		{"nt", 384, 24576, 1536, codesSome},
		{"nt", 385, 24640, 1536, codesSquare},
	} {
		if got := d.codesTilingFor(c.layout, c.groups, c.rows, c.columns); got != c.want {
			t.Errorf("%s, %d groups, %d rows, %d columns: %s, want %s", c.layout, c.groups, c.rows, c.columns, got,
				c.want)
		}
	}
}

// A device that computes nothing counts the workspace of dequantized weights, and none where codes are read.
func TestQuantizedWorkspace(t *testing.T) {
	defer func() { cudatest.GPU.Path = "" }()
	const rows, n, k = 5, 8192, 4096 // more than other tests use
	at, _ := padded(1, 8, 8).On(cudatest.Card)
	memory := func(d kernels.DType, groups, rows, cols int) kernels.Tensor {
		return kernels.Tensor{Data: at.Data, DType: d, Groups: groups, Rows: rows, Cols: cols, Stride: cols}
	}
	f := quant.Format{Code: quant.CodeINT4, Scale: quant.ScaleBF16, Wide: 32}
	w := kernels.NewQuantizedWeight(f, kernels.BF16, 1, n, k, memory)
	for path, want := range map[string]int{"": 0, PathDequantized: n * k * 2} {
		cudatest.GPU.Path = path
		d := New(cudatest.GPU.Meta())
		before := d.Workspace()
		d.MatMul(memory(kernels.BF16, 1, rows, n), nil, kernels.Term{X: memory(kernels.BF16, 1, rows, k), Q: &w})
		if got := d.Workspace(); got != max(want, before) {
			t.Errorf("path %q: %d bytes, want %d", path, got, want)
		}
	}
}
