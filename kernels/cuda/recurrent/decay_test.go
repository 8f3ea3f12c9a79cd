//go:build cuda

package recurrent

import (
	"fmt"
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestDecay(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][2]int{{1, 1}, {77, 3}, {500, 64}} {
			r, h := s[0], s[1]
			for _, hi := range []float32{1.5, float32(math.Inf(1))} {
				x := []cudatest.Operand{cudatest.Strided(kernels.F32, r, h, 1), cudatest.Normal(kernels.F32, r, h, 1),
					cudatest.Strided(dtype, r, h, 3), cudatest.Normal(kernels.F32, 1, h, 1),
					cudatest.Normal(kernels.F32, 1, h, 1), cudatest.Normal(dtype, r, h, 1),
					cudatest.Normal(kernels.F32, 1, h, 1), cudatest.Normal(kernels.F32, 1, h, 1),
					cudatest.Normal(kernels.F32, r, h, 1), cudatest.Strided(kernels.F32, r, h, 1)}
				for _, segments := range cudatest.Segmentations(r) {
					cudatest.BySegment(t, fmt.Sprint("decay ", s, hi), x, segments, func(d kernels.Device,
						x []kernels.Tensor, p cudatest.Part, segments []int32) {
						n, g, dg, dstep := d.(kernels.Recurrent), p.Rows(x[0]), p.Rows(x[8]), p.Rows(x[9])
						in, da := kernels.DecayOperands{A: p.Rows(x[2]), Rate: x[3], Bias: x[4]}, p.Rows(x[5])
						n.Decay(g, p.Rows(x[1]), in, 0.1, hi)
						if hi > 2 {
							dstep = kernels.Tensor{}
						}
						n.DecayBackward(kernels.DecayOperands{A: da, Rate: x[6], Bias: x[7]}, dg, dstep, g, in, 0.1, hi,
							segments)
						n.DecayBackward(kernels.DecayOperands{A: da}, dg, dstep, g, in, 0.1, hi, segments)
					})
				}
			}
		}
	}
}
