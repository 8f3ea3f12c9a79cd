//go:build cuda

package rows

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestClampedSwiGLU(t *testing.T) {
	c := kernels.Clamp{Alpha: 1.702, Limit: 7}
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][2]int{{1, 1}, {33, 77}, {1000, 768}} {
			r, n := s[0], s[1]
			cudatest.Both(t, "clamped swiglu", []cudatest.Operand{cudatest.Normal(dtype, r, n, 1),
				cudatest.Normal(dtype, r, 2*n, 8)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.ClampedSwiGLU(x[0], x[1], c)
				})
			cudatest.Both(t, "clamped swiglu backward", []cudatest.Operand{cudatest.Normal(dtype, r, n, 1),
				cudatest.Normal(dtype, r, 2*n, 8)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.ClampedSwiGLUBackward(x[1], x[0], x[1], c)
				})
		}
	}
}
