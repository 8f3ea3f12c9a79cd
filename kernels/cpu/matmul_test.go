package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// devices is a device for every instruction set that the machine has, with one and with three threads.
func devices(t testing.TB, def kernels.Definition) []*Device {
	t.Helper()
	var all []*Device
	for _, isa := range []ISA{Portable, AVX2, AVX512} {
		for _, threads := range []int{1, 3} {
			d, err := New(def, Options{Threads: threads, ISA: isa})
			if err != nil {
				t.Logf("not tested: %v", err)
				continue
			}
			t.Cleanup(func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			})
			all = append(all, d)
		}
	}
	return all
}

// strided is a random [groups, rows, cols] tensor with gap unused elements, NaN, between rows.
func strided(rng *rand.Rand, d kernels.DType, groups, rows, cols, gap int) kernels.Tensor {
	stride, nan := cols+gap, kernels.FromBF16(0x7fc0)
	n := groups * rows * stride
	value := func(i int) float32 {
		if i%stride >= cols {
			return nan
		}
		return float32(rng.NormFloat64())
	}
	t := kernels.Tensor{DType: d, Groups: groups, Rows: rows, Cols: cols, Stride: stride}
	if d == kernels.BF16 {
		x := make([]uint16, n+1)
		for i := range x {
			x[i] = kernels.RoundBF16(value(i))
		}
		t.Data = unsafe.Pointer(unsafe.SliceData(x))
		return t
	}
	x := make([]float32, n+1)
	for i := range x {
		x[i] = value(i)
	}
	t.Data = unsafe.Pointer(unsafe.SliceData(x))
	return t
}

// element is (i, j) of group g as fp32.
func element(t kernels.Tensor, g, i, j int) float32 {
	at := (g*t.Rows+i)*t.Stride + j
	if t.DType == kernels.BF16 {
		return kernels.FromBF16(t.BF16s()[at])
	}
	return t.F32s()[at]
}

func rounded(d kernels.DType, x float32) float32 {
	if d == kernels.BF16 {
		return kernels.FromBF16(kernels.RoundBF16(x))
	}
	return x
}

// dotChain is the definition's chain over products x[i]*y[i].
func dotChain(mode kernels.DotMode, acc float32, x, y []float32) float32 {
	if mode == kernels.DotFMA {
		for i := range x {
			acc = kernels.FMA(x[i], y[i], acc)
		}
		return acc
	}
	for i := 0; i < len(x); i += 16 {
		var a, b [16]float32
		copy(a[:], x[i:])
		copy(b[:], y[i:])
		acc = gemm.Step16(acc, &a, &b)
	}
	return acc
}

// matmulCase is a product by definition: out[m,n] over terms of widths ks, rows cut into groups of sizes.
type matmulCase struct {
	dot        kernels.DotMode
	in, out    kernels.DType
	sizes      []int // rows of each group; nil: no groups
	rows, cols int
	ks         []int
	gap        int
	transposed bool
}

func (c matmulCase) String() string {
	return fmt.Sprintf("%s %s->%s rows %d cols %d k %v groups %v gap %d transposed %v", c.dot, c.in, c.out, c.rows,
		c.cols, c.ks, c.sizes, c.gap, c.transposed)
}

func (c matmulCase) operands(rng *rand.Rand) (g *kernels.Groups, terms []kernels.Term) {
	count := 1
	if c.sizes != nil {
		count = len(c.sizes)
		offsets := []int32{0}
		for _, n := range c.sizes { // two segments a group, the first of a third of its rows
			at := offsets[len(offsets)-1]
			offsets = append(offsets, at+int32(n/3), at+int32(n))
		}
		g = &kernels.Groups{Offsets: kernels.WrapI32(offsets), Count: count, Segments: 2}
	}
	for _, k := range c.ks {
		w := strided(rng, c.in, count, c.cols, k, c.gap)
		if c.transposed {
			w = strided(rng, c.in, count, k, c.cols, c.gap)
		}
		terms = append(terms, kernels.Term{X: strided(rng, c.in, 1, c.rows, k, c.gap), W: w})
	}
	return g, terms
}

func (c matmulCase) group(row int) int {
	for g, n := range c.sizes {
		if row < n {
			return g
		}
		row -= n
	}
	return 0
}

// want is out row by row.
func (c matmulCase) want(terms []kernels.Term) []float32 {
	var out []float32
	for i := range c.rows {
		g := c.group(i)
		for j := range c.cols {
			acc := float32(0)
			for _, t := range terms {
				x, y := make([]float32, t.X.Cols), make([]float32, t.X.Cols)
				for l := range x {
					x[l] = element(t.X, 0, i, l)
					if c.transposed {
						y[l] = element(t.W, g, l, j)
					} else {
						y[l] = element(t.W, g, j, l)
					}
				}
				acc = dotChain(c.dot, acc, x, y)
			}
			out = append(out, rounded(c.out, acc))
		}
	}
	return out
}

func (c matmulCase) run(d *Device, out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) {
	if c.transposed {
		d.MatMulT(out, g, terms...)
	} else {
		d.MatMul(out, g, terms...)
	}
}

// mustEqual compares a tensor's rows, group after group, with want, and its gaps with NaN.
func mustEqual(t *testing.T, what any, got kernels.Tensor, want []float32) {
	t.Helper()
	for i := range got.Groups * got.Rows {
		for j := range got.Stride {
			v, at := element(got, 0, i, j), i*got.Cols+j
			if j >= got.Cols {
				if i < got.Groups*got.Rows-1 && v == v {
					t.Fatalf("%v: element %d of the gap after row %d was written", what, j, i)
				}
			} else if w := want[at]; v != w && (v == v || w == w) || (v == 0) != (w == 0) {
				t.Fatalf("%v: [%d, %d] is %v (%#x), want %v", what, i, j, v, v, w)
			}
			if i == got.Groups*got.Rows-1 && j == got.Cols-1 {
				return
			}
		}
	}
}

func matmulCases(dot kernels.DotMode) []matmulCase {
	f, h := kernels.F32, kernels.BF16
	cases := []matmulCase{
		{in: h, out: h, rows: 1, cols: 1, ks: []int{1}},
		{in: h, out: f, rows: 17, cols: 33, ks: []int{19}, gap: 3},
		{in: h, out: h, rows: 130, cols: 67, ks: []int{70, 8}, gap: 5},
		{in: h, out: h, rows: 29, cols: 48, ks: []int{600}},
		{in: h, out: h, rows: 40, cols: 35, ks: []int{48, 16}, sizes: []int{0, 7, 1, 0, 32, 0}, gap: 1},
		{in: h, out: f, rows: 5, cols: 160, ks: []int{33}, sizes: []int{5}},
	}
	if dot == kernels.DotFMA {
		for _, c := range cases {
			c.in, c.out = f, f
			cases = append(cases, c)
		}
		cases = append(cases, matmulCase{in: f, out: f, rows: 300, cols: 200, ks: []int{130}})
	}
	for _, c := range slices.Clone(cases) {
		c.transposed = true
		cases = append(cases, c)
	}
	for i := range cases {
		cases[i].dot = dot
	}
	return cases
}

func TestMatMulEqualsDefinition(t *testing.T) {
	for _, dot := range []kernels.DotMode{kernels.DotFMA, kernels.DotTC16} {
		def := kernels.Default()
		def.Dot = dot
		all := devices(t, def)
		for i, c := range matmulCases(dot) {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			g, terms := c.operands(rng)
			want := c.want(terms)
			for _, d := range all {
				out := strided(rng, c.out, 1, c.rows, c.cols, c.gap)
				c.run(d, out, g, terms)
				mustEqual(t, d.Name()+" "+c.String(), out, want)
			}
		}
	}
}

// Rows of a small batch must equal the same rows of a large one.
func TestMatMulIgnoresOtherRows(t *testing.T) {
	const rows, n, k = 64, 70, 90
	for _, d := range devices(t, kernels.Default()) {
		rng := rand.New(rand.NewPCG(2, 3))
		x, w := strided(rng, kernels.F32, 1, rows, k, 0), strided(rng, kernels.F32, 1, n, k, 0)
		all := strided(rng, kernels.F32, 1, rows, n, 0)
		d.MatMul(all, nil, kernels.Term{X: x, W: w})
		for m := 1; m < rows; m++ {
			part := strided(rng, kernels.F32, 1, m, n, 0)
			from := (rows - m) / 2
			d.MatMul(part, nil, kernels.Term{X: x.RowRange(from, from+m), W: w})
			mustEqual(t, fmt.Sprintf("%s: %d rows", d.Name(), m), part, all.RowRange(from, from+m).F32s())
		}
	}
}

// The product of adapters is rounded, scaled and rounded again before the weight's product goes on over it.
func TestMatMulLoRA(t *testing.T) {
	const rows, n, k, rank, scale = 9, 40, 33, 8, 0.3
	def := kernels.Default()
	def.Dot = kernels.DotTC16
	rng := rand.New(rand.NewPCG(7, 1))
	draw := func(rows, cols int) kernels.Tensor { return strided(rng, kernels.BF16, 1, rows, cols, 0) }
	for _, d := range devices(t, def) {
		x, w, a, b := draw(rows, k), draw(n, k), draw(rank, k), draw(n, rank)
		u, want := draw(rows, rank), draw(rows, n)
		d.MatMul(u, nil, kernels.Term{X: x, W: a})
		for i, v := range u.BF16s() {
			u.BF16s()[i] = kernels.RoundBF16(kernels.FromBF16(v) * scale)
		}
		d.MatMul(want, nil, kernels.Term{X: x, W: w}, kernels.Term{X: u, W: b})
		out, own := draw(rows, n), draw(rows, rank)
		d.MatMulLoRA(out, own, x, a, scale, nil, kernels.Term{X: x, W: w}, kernels.Term{X: own, W: b})
		if !slices.Equal(out.BF16s(), want.BF16s()) || !slices.Equal(own.BF16s(), u.BF16s()) {
			t.Error(d.Name(), ": not the product that adds a scaled one")
		}
	}
}
