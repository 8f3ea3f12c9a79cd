//go:build cuda

package rows

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// By the card's instruction for 2^x.
func TestEx2h(t *testing.T) {
	cudatest.Ex2h(t, map[string]func(*testing.T){
		"SwiGLU": TestSwiGLU,
	}, func() {
		swiglu := func(d kernels.Device, x []kernels.Tensor) { d.SwiGLU(x[0], x[1]) }
		x := []cudatest.Operand{cudatest.Normal(kernels.F32, 7, 100, 1), cudatest.Normal(kernels.F32, 7, 200, 1)}
		if n, _ := cudatest.Differences(t, x, swiglu, swiglu); n == 0 {
			t.Error("both definitions give the same bits: one is not used")
		}
	})
}

// By the roundings and splits that other stacks have.
func TestRoundings(t *testing.T) {
	cudatest.Roundings(t, map[string]func(*testing.T){
		"Norm":         TestNorm,
		"HeadNormRope": TestHeadNormRope,
	}, func() {
		norm := func(d kernels.Device, x []kernels.Tensor) { d.RMSNorm(x[0], x[1], x[2], x[3], kernels.Norm{}) }
		x := []cudatest.Operand{cudatest.Normal(kernels.BF16, 9, 100, 1), cudatest.Normal(kernels.F32, 1, 9, 1),
			cudatest.Normal(kernels.BF16, 9, 100, 1), cudatest.Normal(kernels.BF16, 1, 100, 1)}
		if n, _ := cudatest.Differences(t, x, norm, norm); n == 0 {
			t.Error("both definitions give the same bits: one is not used")
		}
	})
}
