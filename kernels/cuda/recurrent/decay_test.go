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
			packs := []int32{0, int32(r / 3), int32(r)}
			for _, hi := range []float32{1.5, float32(math.Inf(1))} {
				cudatest.Both(t, fmt.Sprint("decay ", s, hi), []cudatest.Operand{cudatest.Strided(kernels.F32, r, h, 1),
					cudatest.Normal(kernels.F32, r, h, 1), cudatest.Strided(dtype, r, h, 3),
					cudatest.Normal(kernels.F32, 1, h, 1),
					cudatest.Normal(kernels.F32, 1, h, 1),
					cudatest.Normal(dtype, r, h, 1), cudatest.Normal(kernels.F32, 1, h, 1), cudatest.Normal(kernels.F32,
						1, h, 1),
					cudatest.Normal(kernels.F32, r, h, 1), cudatest.Strided(kernels.F32, r, h, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						n, dstep := d.(kernels.Recurrent), x[9]
						in := kernels.DecayOperands{A: x[2], Rate: x[3], Bias: x[4]}
						n.Decay(x[0], x[1], in, 0.1, hi)
						if hi > 2 {
							dstep = kernels.Tensor{}
						}
						n.DecayBackward(kernels.DecayOperands{A: x[5], Rate: x[6], Bias: x[7]}, x[8], dstep, x[0], in,
							0.1, hi, packs)
						n.DecayBackward(kernels.DecayOperands{A: x[5]}, x[8], dstep, x[0], in, 0.1, hi, packs)
					})
			}
		}
	}
}
