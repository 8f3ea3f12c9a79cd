//go:build cuda

package rows

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestReLU2(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][2]int{{1, 1}, {33, 77}, {1000, 768}} {
			cudatest.Both(t, "relu2", []cudatest.Operand{cudatest.Strided(dtype, s[0], s[1], 1),
				cudatest.Strided(dtype, s[0], s[1], 3),
				cudatest.Normal(dtype, s[0], s[1], 1)}, func(d kernels.Device, x []kernels.Tensor) {
				m := d.(kernels.Mamba)
				m.ReLU2(x[0], x[1])
				m.ReLU2Backward(x[1], x[2], x[1])
			})
		}
	}
}
