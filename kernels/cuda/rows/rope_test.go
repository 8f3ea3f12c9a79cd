//go:build cuda

package rows

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestHeadNormRope(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][4]int{{1, 1, 8, 4}, {17, 3, 16, 4}, {300, 8, 64, 32}, {17000, 1, 64, 32}, {70, 5, 128, 64},
			{33, 40, 128, 64}, {20, 3, 256, 128}, {500, 4, 128, 32}, {70, 3, 192, 32}, {40, 3, 64, 8}, {33, 5, 96, 12},
			{21, 2, 160, 20}} {
			first := s[2] - 2*s[3]
			ropes := []kernels.Rope{{First: first}, {First: first, Interleaved: true}}
			if first > 0 {
				ropes = append(ropes, kernels.Rope{})
			}
			for _, rope := range ropes {
				rope.HeadDim = s[2]
				headNormRope(t, dtype, s[0], s[1], s[3], rope, nil)
				if !rope.Interleaved {
					headNormRope(t, dtype, s[0], s[1], s[3], rope, &kernels.Norm{Eps: 1e-6})
					headNormRope(t, dtype, s[0], s[1], s[3], rope, &kernels.Norm{Eps: 1e-5, PlusOne: true})
				}
			}
		}
	}
}

func headNormRope(t *testing.T, dtype kernels.DType, r, heads, pairs int, rope kernels.Rope, normed *kernels.Norm) {
	t.Helper()
	n, segments, norm := heads*rope.HeadDim, []int32{0, int32(r / 3), int32(r)}, kernels.Norm{}
	if normed != nil {
		norm = *normed
	}
	tables := func(cos, sin kernels.Tensor) kernels.Rope {
		rope.Cos, rope.Sin = cos, sin
		return rope
	}
	at, cos, sin := cudatest.Ints(1, r, cudatest.Below(r, 50)), cudatest.Normal(kernels.F32, 50, pairs, 1),
		cudatest.Normal(kernels.F32, 50, pairs, 1)
	name := fmt.Sprintf("head norm and rope %d %d %d %+v %v", r, heads, pairs, rope, normed)
	cudatest.Both(t, name, []cudatest.Operand{cudatest.Normal(dtype, r, n, 1), cudatest.Normal(kernels.F32, r, heads,
		1), cudatest.Strided(dtype, r, n, 1),
		cudatest.Normal(dtype, 1, rope.HeadDim, 1), at, cos, sin},
		func(d kernels.Device, x []kernels.Tensor) {
			if normed == nil {
				x[3] = kernels.Tensor{}
			}
			d.HeadNormRope(x[0], x[1], x[2], x[3], x[4], tables(x[5], x[6]), norm)
		})
	cudatest.Both(t, name+" backward", []cudatest.Operand{cudatest.Normal(dtype, r, n, 1), cudatest.Normal(kernels.F32,
		1, rope.HeadDim, 1),
		cudatest.Strided(dtype, r, n, 1), cudatest.Normal(dtype, r, n, 1), cudatest.Positive(r, heads),
		cudatest.Normal(dtype, 1, rope.HeadDim, 1), at, cos, sin},
		func(d kernels.Device, x []kernels.Tensor) {
			w, dw := x[5], x[1]
			if normed == nil {
				w, dw = kernels.Tensor{}, kernels.Tensor{}
			}
			d.HeadNormRopeBackward(x[0], dw, x[2], x[3], x[4], w, x[6], tables(x[7], x[8]), norm, segments)
			// in place
			d.HeadNormRopeBackward(x[2], kernels.Tensor{}, x[2], x[3], x[4], w, x[6], tables(x[7], x[8]), norm,
				segments)
		})
}
