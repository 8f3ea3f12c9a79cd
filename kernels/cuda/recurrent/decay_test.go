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
						n.Decay(x[0], x[1], x[2], x[3], x[4], 0.1, hi)
						if hi > 2 {
							dstep = kernels.Tensor{}
						}
						n.DecayBackward(x[5], x[6], x[7], x[8], dstep, x[0], x[2], x[3], x[4], 0.1, hi, packs)
						n.DecayBackward(x[5], kernels.Tensor{}, kernels.Tensor{}, x[8], dstep, x[0], x[2], x[3], x[4],
							0.1, hi, packs)
					})
			}
		}
	}
}
