//go:build cuda

package attention

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestJoinHeads(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][4]int{{1, 1, 1, 1}, {33, 3, 5, 2}, {33, 3, 8, 4}, {70, 5, 16, 24}, {300, 64, 128, 64},
			{65536, 2, 3, 1}} {
			rows, heads, n, r := s[0], s[1], s[2], s[3]
			cudatest.Both(t, fmt.Sprint("join heads ", s), []cudatest.Operand{cudatest.Strided(dtype, rows, heads*(n+r),
				1),
				cudatest.Normal(dtype, rows, heads*n, 1), cudatest.Strided(dtype, rows, r, 1),
				cudatest.Strided(dtype, rows, heads*n, 1),
				cudatest.Normal(dtype, rows, r, 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.JoinHeads(x[0], x[1], x[2])
					d.JoinHeadsBackward(x[3], x[4], x[0])
				})
		}
	}
}
