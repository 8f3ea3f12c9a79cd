//go:build cuda

package moe

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// randomExperts is k different experts for each token.
func randomExperts(tokens, e, k int) []int32 {
	expertIDs := make([]int32, 0, tokens*k)
	for range tokens {
		for _, p := range cudatest.Rand.Perm(e)[:k] {
			expertIDs = append(expertIDs, int32(p))
		}
	}
	return expertIDs
}

func TestMoE(t *testing.T) {
	for _, s := range [][4]int{{1, 4, 2, 16}, {77, 8, 2, 100}, {1000, 128, 8, 64}, {513, 384, 8, 256}, {300, 3, 3, 32},
		{40, 32, 10, 72}, {3, 64, 16, 52}, {65536, 16, 2, 24}} {
		tokens, e, k, width := s[0], s[1], s[2], s[3]
		for _, weighted := range []bool{true, false} {
			expertIDs := randomExperts(tokens, e, k)
			segments := []int32{0, int32(tokens / 3), int32(tokens / 3), int32(tokens)}
			for _, dtype := range cudatest.DTypes {
				cudatest.Both(t, "dispatch, gather, combine", []cudatest.Operand{cudatest.Ints(tokens, k, expertIDs),
					cudatest.Ints(1, 3*e+1, make([]int32, 3*e+1)), cudatest.Ints(1, tokens*k, make([]int32, tokens*k)),
					cudatest.Ints(tokens, k, make([]int32, tokens*k)),
					cudatest.Normal(dtype, tokens, width, 1), cudatest.Normal(dtype, tokens*k, width, 1),
					cudatest.Normal(kernels.F32, tokens, k,
						1), cudatest.Normal(dtype, tokens, width, 1), cudatest.Normal(dtype, tokens*k, width, 1),
					cudatest.Normal(kernels.F32, tokens, k, 1),
					cudatest.Normal(dtype, tokens*k, width, 1), cudatest.Normal(kernels.F32, tokens*k, 1, 1),
					cudatest.Strided(dtype, tokens, width, 1), cudatest.Normal(dtype, tokens, width, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						g := kernels.Groups{Offsets: x[1], Count: e, Segments: 3}
						d.Dispatch(kernels.Plan{Groups: g, Source: x[2], RowOf: x[3]}, x[0], segments)
						d.Gather(x[5], x[4], x[2])
						w := x[6]
						if !weighted {
							w = kernels.Tensor{}
						}
						d.Combine(x[13], x[12], x[5], w, x[3])
						d.Combine(x[12], x[12], x[5], w, x[3])
						d.Combine(x[7], kernels.Tensor{}, x[5], w, x[3])
						d.CombineBackward(x[8], x[9], x[7], x[5], x[6], x[3], kernels.AllRows)
						from, to := tokens*k/5, tokens*k/2+1 // the rows of an owner
						d.CombineBackward(x[10].RowRange(from, to), x[11].RowRange(from, to), x[7],
							x[5].RowRange(from, to), x[6], x[3], from)
					})
			}
		}
	}
}
