//go:build cuda

package attention

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestSinks(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][3]int{{1, 1, 8}, {130, 3, 32}, {500, 64, 64}} {
			r, heads, dim := s[0], s[1], s[2]
			packs := []int32{0, int32(r / 3), int32(r)}
			cudatest.Both(t, fmt.Sprint("sinks ", s), []cudatest.Operand{cudatest.Strided(dtype, r, heads*dim, 1),
				cudatest.Strided(kernels.F32, r, heads,
					6), cudatest.Normal(dtype, 1, heads, 4), cudatest.Normal(kernels.F32, 1, heads, 1),
				cudatest.Strided(dtype, r, heads*dim, 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Sinks(x[0], x[1], x[2])
					d.SinksBackward(x[3], x[4], x[0], x[1], x[2], packs)
				})
		}
	}
}
