//go:build cuda

package gemm

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
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

// quantizedFormats are those of releases, one of whose rows share a scale, and one that only Dequantize knows.
var quantizedFormats = []quant.Format{
	{Code: quant.CodeINT4, Scale: quant.ScaleBF16, Wide: 32}, {Code: quant.CodeINT4, Scale: quant.ScaleF32, Wide: 5},
	{Code: quant.CodeE2M1, Scale: quant.ScaleE8M0, Wide: 32}, {Code: quant.CodeE4M3, Scale: quant.ScaleE8M0, Wide: 32},
	{Code: quant.CodeE4M3, Scale: quant.ScaleE8M0, Wide: 128},
	{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 128},
	{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 1 << 20},
}

func TestQuantizedProducts(t *testing.T) {
	for _, f := range quantizedFormats {
		for _, c := range []quantizedCase{
			{f, 1, 1, 16, 32, nil}, {f, 1, 9, 72, 96, [][2]int{{0, 72}}},
			{f, 3, 150, 144, 352, [][2]int{{0, 64}, {64, 144}}}, {f, 1, 33, 57, 100, nil},
			{f, 5, 300, 136, 64, [][2]int{{3, 80}}}, {f, 1, 270, 272, 160, nil},
		} {
			c.products(t, 1+len(c.ranges))
		}
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
