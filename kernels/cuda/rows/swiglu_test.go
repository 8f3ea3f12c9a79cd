//go:build cuda

package rows

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestSwiGLU(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][2]int{{1, 1}, {33, 77}, {1000, 768}, {65536, 16}} {
			r, n := s[0], s[1]
			cudatest.Both(t, "swiglu", []cudatest.Operand{cudatest.Normal(dtype, r, n, 1),
				cudatest.Normal(dtype, r, 2*n, 8)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.SwiGLU(x[0], x[1])
				})
			cudatest.Both(t, "swiglu backward", []cudatest.Operand{cudatest.Normal(dtype, r, n, 1),
				cudatest.Normal(dtype, r, 2*n, 8)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.SwiGLUBackward(x[1], x[0], x[1])
				})
		}
	}
}
