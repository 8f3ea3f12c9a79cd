//go:build cuda

package gemm

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
	"lockstep/quant"
)

// fp8Case is a product of m rows in codes by a weight in codes [groups, n, k], with adapters for columns each.
type fp8Case struct {
	groups, m, n, k, high int // high: rows of the weight that share scales; 64: out is fp32
	ranges                [][2]int
}

// product compares both devices by each path.
func (c fp8Case) product(t *testing.T) {
	t.Helper()
	f := quant.FP8x128.Format()
	x, w := cudatest.RandomQuantized(f, kernels.BF16, 1, c.m, c.k), cudatest.RandomQuantized(f, kernels.BF16, c.groups,
		c.n, c.k)
	for i := range w.Scales.Raw {
		row := i / 4 % c.n
		copy(w.Scales.Raw[i:i+1], w.Scales.Raw[i-4*(row%c.high):])
	}
	out := padded(1, c.m, c.n)
	if c.high == 64 {
		out = cudatest.Normal(kernels.F32, c.m, c.n, 1)
	}
	all := []cudatest.Operand{out, x.Codes, x.Scales, w.Codes, w.Scales, randomOffsets(c.groups, c.m)}
	for _, r := range c.ranges {
		all = append(all, padded(1, c.m, rank), padded(c.groups, r[1]-r[0], rank))
	}
	defer func() { cudatest.GPU.Path = "" }()
	for _, path := range append([]string{""}, FP8Paths...) {
		cudatest.GPU.Path = path
		cudatest.Both(t, fmt.Sprintf("%s: %+v", path, c), all, func(d kernels.Device, on []kernels.Tensor) {
			var g *kernels.Groups
			if c.groups > 1 {
				g = &kernels.Groups{Offsets: on[5], Count: c.groups, Segments: 1}
			}
			terms := []kernels.Term{{X: x.Shape.Shape(), XQ: x.On(on[1], on[2]), Q: w.On(on[3], on[4])}}
			for i, r := range c.ranges {
				terms = append(terms, kernels.Term{X: on[6+2*i], W: on[7+2*i], From: r[0], To: r[1]})
			}
			d.MatMul(on[0], g, terms...)
		})
	}
}

// Products of codes are the CPU's: tiles that are not full, scales of single rows and of blocks that begin inside a
// tile, empty groups, adapters, one column to several blocks of k.
func TestProductsOfCodes(t *testing.T) {
	for _, c := range []fp8Case{
		{1, 1, 16, 16, 1, nil}, {1, 9, 72, 144, 128, [][2]int{{0, 72}}}, {3, 150, 144, 352, 64, [][2]int{{0, 64},
			{64, 144}}}, {1, 300, 57, 112, 64, nil}, {1, 270, 136, 272, 128, [][2]int{{3, 80}}},
		{4, 40, 300, 128, 128, nil}, {1, 256, 128, 272, 128, nil}, {1, 256, 128, 400, 1, nil},
	} {
		c.product(t)
	}
}

// Few rows have kernels of few, and many large tiles where they fill the card.
func TestFP8Tilings(t *testing.T) {
	d := &Ops{Context: &driver.Context{Processors: 132}}
	for _, c := range []struct {
		groups, rows, columns int
		want                  tiling
	}{
		{1, 8192, 8192, fp8Wide}, {32, 32864, 7168, fp8Wide}, {128, 16384, 1536, fp8Square}, {128, 1024, 1536, fp8Few},
		{1, 256, 4096, fp8Square}, {1, 1, 4096, fp8Few},
	} {
		if got := d.fp8TilingFor(c.groups, c.rows, c.columns); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
