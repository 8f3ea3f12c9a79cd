//go:build cuda

package gemm

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/quant"
)

func TestPathsEqualReference(t *testing.T) {
	for _, s := range [][3]int{{1, 1, 1}, {7, 100, 33}, {16, 64, 64}, {70, 129, 200}, {257, 130, 333},
		{300, 257, 1000}} {
		m, n, k := s[0], s[1], s[2]
		for _, out := range cudatest.DTypes {
			x := []cudatest.Operand{cudatest.Strided(out, m, n, 1), padded(1, m, k), padded(1, n, k), padded(1, m, 17),
				padded(1, n, 17),
				padded(1, m, 80), padded(1, n, 80)}
			forcing(func(path string) {
				cudatest.Both(t, fmt.Sprint("nt ", path, s), x, func(d kernels.Device, x []kernels.Tensor) {
					d.MatMul(x[0], nil, kernels.Term{X: x[1], W: x[2]}, kernels.Term{X: x[3], W: x[4]},
						kernels.Term{X: x[5], W: x[6]})
				})
			})
			x = []cudatest.Operand{cudatest.Normal(out, m, n, 1), padded(1, m, k), padded(1, k, n), padded(1, m, 17),
				padded(1, 17, n)}
			forcing(func(path string) {
				cudatest.Both(t, fmt.Sprint("nn ", path, s), x, func(d kernels.Device, x []kernels.Tensor) {
					d.MatMulT(x[0], nil, kernels.Term{X: x[1], W: x[2]}, kernels.Term{X: x[3], W: x[4]})
				})
			})
		}
	}
}

func TestMatMul(t *testing.T) {
	for _, s := range [][3]int{{1, 1, 1}, {1, 8, 16}, {5, 100, 33}, {130, 129, 200}, {300, 257, 1000}, {64, 480, 2048},
		{513, 128, 24}, {65536, 8, 16}} {
		m, n, k := s[0], s[1], s[2]
		for _, out := range cudatest.DTypes {
			for _, make := range []func(kernels.DType, int, int, float64) cudatest.Operand{cudatest.Normal,
				cudatest.Strided} {
				cudatest.Both(t, fmt.Sprint("matmul ", s), []cudatest.Operand{make(out, m, n, 1),
					make(kernels.BF16, m, k, 1),
					make(kernels.BF16, n, k, 1), make(kernels.BF16, m, 16, 1), make(kernels.BF16, n, 16, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.MatMul(x[0], nil, kernels.Term{X: x[1], W: x[2]}, kernels.Term{X: x[3], W: x[4]})
					})
				cudatest.Both(t, fmt.Sprint("matmul transposed ", s), []cudatest.Operand{make(out, m, n, 1),
					make(kernels.BF16, m, k, 1),
					make(kernels.BF16, k, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) { d.MatMulT(x[0], nil, kernels.Term{X: x[1], W: x[2]}) })
			}
		}
	}
}

func TestGroupedMatMul(t *testing.T) {
	for _, s := range [][4]int{{3, 17, 40, 33}, {8, 300, 64, 96}, {16, 1000, 256, 128}, {128, 500, 48, 64}} {
		groups, rows, n, k := s[0], s[1], s[2], s[3]
		const segments = 2
		offsets := cudatest.Below(groups*segments+1, rows+1)
		offsets[0] = 0
		for i := range offsets {
			if i > 0 {
				offsets[i] = max(offsets[i-1], min(offsets[i-1]+int32(cudatest.Rand.IntN(3*rows/(groups*segments)+2)),
					int32(rows)))
			}
		}
		offsets[groups*segments] = int32(rows)
		g := func(t kernels.Tensor) *kernels.Groups {
			return &kernels.Groups{Offsets: t, Count: groups, Segments: segments}
		}
		at := cudatest.Ints(1, len(offsets), offsets)
		for _, pad := range []int{0, 1} {
			cudatest.Both(t, fmt.Sprint("grouped ", s), []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, n, 1),
				cudatest.Normal(kernels.BF16, rows, k,
					1), cudatest.Grouped(kernels.BF16, groups, n, k, k+pad, 1), at},
				func(d kernels.Device, x []kernels.Tensor) { d.MatMul(x[0], g(x[3]), kernels.Term{X: x[1], W: x[2]}) })
			cudatest.Both(t, fmt.Sprint("grouped transposed ", s),
				[]cudatest.Operand{cudatest.Normal(kernels.BF16, rows, k, 1),
					cudatest.Normal(kernels.BF16, rows, n, 1), cudatest.Grouped(kernels.BF16, groups, n, k, k+pad, 1),
					at},
				func(d kernels.Device, x []kernels.Tensor) { d.MatMulT(x[0], g(x[3]), kernels.Term{X: x[1], W: x[2]}) })
		}
		cudatest.Both(t, fmt.Sprint("weight gradient ", s), []cudatest.Operand{cudatest.Grouped(kernels.F32, groups, n,
			k, k, 1),
			cudatest.Normal(kernels.BF16, rows, n, 1), cudatest.Strided(kernels.BF16, rows, k, 1), at},
			func(d kernels.Device, x []kernels.Tensor) { d.WeightGrad(x[0], x[1], x[2], g(x[3])) })
	}
}

// A product and what its adapters add, by one call: launch by launch, and as a graph. The second product begins before
// the first has ended.
func TestMatMulLoRA(t *testing.T) {
	defer func() { cudatest.GPU.Path = "" }()
	for _, s := range [][3]int{{1, 48, 32}, {70, 272, 96}, {250, 264, 1216}, {300, 1040, 64}} {
		for i, scale := range []float32{2, 0.3} {
			for _, path := range append([]string{"", "portable"}, QuantizedPaths[i*5:]...) {
				cudatest.GPU.Path = path
				testLoRA(t, s[0], s[1], s[2], scale)
			}
		}
	}
}

// testLoRA is of a weight in bf16 and one in codes, with two adapters.
func testLoRA(t *testing.T, m, n, k int, scale float32) {
	t.Helper()
	const rank = 16
	cut, q := n/32*16, cudatest.RandomQuantized(quant.FP8.Format(), kernels.BF16, 1, n, k)
	operands := []cudatest.Operand{padded(1, m, n), padded(1, m, 2*rank), padded(1, m, k), padded(1, 2*rank, k),
		padded(1, cut, rank), padded(1, n-cut, rank), padded(1, n, k), q.Codes, q.Scales, padded(1, m, n)}
	name := fmt.Sprint("LoRA ", m, n, k, scale, cudatest.GPU.Path)
	cudatest.Both(t, name, operands, func(d kernels.Device, x []kernels.Tensor) {
		product := func(out kernels.Tensor, base kernels.Term) {
			base.X = x[2]
			d.MatMulLoRA(out, x[1], x[2], x[3], scale, nil, base,
				kernels.Term{X: x[1].ColRange(0, rank), W: x[4], To: cut},
				kernels.Term{X: x[1].ColRange(rank, 2*rank), W: x[5], From: cut, To: n})
		}
		product(x[0], kernels.Term{W: x[6]})
		kernels.Repeat(d, "lora", func() {
			product(x[9], kernels.Term{Q: q.On(x[7], x[8])})
			product(x[0], kernels.Term{W: x[6]})
		})
	})
}
