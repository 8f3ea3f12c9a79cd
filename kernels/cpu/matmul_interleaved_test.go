package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// gathered is every count-th row of t from row e on, in memory of its own.
func gathered(rng *rand.Rand, t kernels.Tensor, e, count int) kernels.Tensor {
	out := strided(rng, t.DType, 1, t.Rows/count, t.Cols, 0)
	for i := range out.Rows {
		from, to := (i*count+e)*t.Stride, (i*count+e)*t.Stride+t.Cols
		if t.DType == kernels.F32 {
			copy(out.F32s()[i*t.Cols:], t.F32s()[from:to])
		} else {
			copy(out.BF16s()[i*t.Cols:], t.BF16s()[from:to])
		}
	}
	return out
}

// Each interleaved group is a product by itself: whatever lies between its rows, whether it has its own weight or
// shares one, and however many tokens a call has.
func TestInterleaved(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, c := range []struct {
		dot   kernels.DotMode
		dtype kernels.DType
	}{{kernels.DotFMA, kernels.F32}, {kernels.DotFMA, kernels.BF16}, {kernels.DotTC16, kernels.BF16}} {
		def := kernels.Default()
		def.Dot = c.dot
		for _, d := range devices(t, def) {
			for range 4 {
				tokens, heads, n, k, rank := 1+rng.IntN(40), 1+rng.IntN(5), 1+rng.IntN(40), 1+rng.IntN(40),
					1+rng.IntN(6)
				x, y := strided(rng, c.dtype, 1, tokens*heads, k, rng.IntN(9)), strided(rng, c.dtype, 1, tokens*heads,
					n, rng.IntN(9))
				u := strided(rng, c.dtype, 1, tokens*heads, rank, 0)
				w, a, b := strided(rng, c.dtype, heads, n, k, 0), strided(rng, c.dtype, 1, rank, k, 0),
					strided(rng, c.dtype, heads, n, rank, 0)
				g := &kernels.Groups{Count: heads, Interleaved: true}
				up, down := strided(rng, c.dtype, 1, tokens*heads, n, 3), strided(rng, c.dtype, 1, tokens*heads, k, 5)
				d.MatMul(up, g, kernels.Term{X: x, W: w}, kernels.Term{X: u, W: b})
				d.MatMulT(down, g, kernels.Term{X: y, W: w}, kernels.Term{X: u, W: a})
				cut := rng.IntN(tokens + 1)
				segments := kernels.WrapI32([]int32{0, int32(cut), int32(tokens)})
				g.Offsets, g.Segments = segments, 2
				own := &kernels.Groups{Offsets: segments, Count: 1, Segments: 2}
				chain := func(from, to int) *kernels.Groups {
					return &kernels.Groups{Offsets: kernels.WrapI32([]int32{0, int32(to - from)}), Count: 1,
						Segments: 1, Chain: true}
				}
				grad, shared := strided(rng, kernels.F32, heads, n, k, 0), strided(rng, kernels.F32, 1, n, k, 0)
				wantGrad, wantShared := copied(grad), copied(shared)
				d.WeightGrad(grad, y, x, g)
				d.WeightGrad(shared, y, x, g)
				for e := range heads {
					wantUp, wantDown := strided(rng, c.dtype, 1, tokens, n, 0), strided(rng, c.dtype, 1, tokens, k, 0)
					xe, ye, ue := gathered(rng, x, e, heads), gathered(rng, y, e, heads), gathered(rng, u, e, heads)
					d.MatMul(wantUp, nil, kernels.Term{X: xe, W: w.Group(e)}, kernels.Term{X: ue, W: b.Group(e)})
					d.MatMulT(wantDown, nil, kernels.Term{X: ye, W: w.Group(e)}, kernels.Term{X: ue, W: a})
					d.WeightGrad(wantGrad.Group(e), ye, xe, own)
					what := fmt.Sprintf("%s, %s %s: head %d of %d, %d tokens, %d by %d", d.Name(), c.dot, c.dtype, e,
						heads, tokens, n, k)
					sameRows(t, what+", up", gathered(rng, up, e, heads), wantUp)
					sameRows(t, what+", down", gathered(rng, down, e, heads), wantDown)
				}
				for _, rows := range [][2]int{{0, cut}, {cut, tokens}} { // the chain of a segment, through all heads
					sum := kernels.Wrap(make([]float32, n*k), n, k)
					for e := range heads {
						ye, xe := gathered(rng, y, e, heads), gathered(rng, x, e, heads)
						ye, xe = ye.RowRange(rows[0], rows[1]), xe.RowRange(rows[0], rows[1])
						d.WeightGrad(sum, ye, xe, chain(rows[0], rows[1]))
					}
					addTo(wantShared.F32s(), sum.F32s())
				}
				sameRows(t, d.Name()+": gradients", grad, wantGrad)
				sameRows(t, d.Name()+": gradient of all", shared, wantShared)
			}
		}
	}
}

func copied(t kernels.Tensor) kernels.Tensor {
	c := kernels.Wrap(slices.Clone(t.F32s()), t.Groups*t.Rows, t.Cols)
	c.Groups, c.Rows = t.Groups, t.Rows
	return c
}

func sameRows(t *testing.T, what string, got, want kernels.Tensor) {
	t.Helper()
	for g := range got.Groups {
		for i := range got.Rows {
			for j := range got.Cols {
				if a, b := element(got, g, i, j), element(want, g, i, j); a != b {
					t.Fatalf("%s: (%d, %d, %d) is %v, want %v", what, g, i, j, a, b)
				}
			}
		}
	}
}
