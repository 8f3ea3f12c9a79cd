//go:build cuda

package rows

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestLayerNormBackward(t *testing.T) {
	segments := []int32{0, 1, 66, 150}
	for _, dtype := range cudatest.DTypes {
		for _, n := range []int{1, 7, 16, 128, 700, 2056} {
			for _, layout := range []func(kernels.DType, int, int, float64) cudatest.Operand{cudatest.Normal,
				cudatest.Strided} {
				operands := []cudatest.Operand{layout(dtype, 150, n, 1), layout(dtype, 150, n, 1),
					layout(dtype, 150, n, 3),
					cudatest.Normal(dtype, 1, n, 1), cudatest.Normal(kernels.F32, 1, n, 1), cudatest.Normal(kernels.F32,
						1, n, 1)}
				cudatest.Both(t, fmt.Sprint("layer norm backward of ", n), operands,
					func(d kernels.Device, x []kernels.Tensor) {
						s := d.(kernels.IndexerLoss)
						s.LayerNormBackward(x[0], x[4], x[5], x[1], x[2], x[3], 1e-6, segments)
						s.LayerNormBackward(x[1], x[4], x[5], x[1], x[2], x[3], 1e-6, segments)
					})
			}
		}
	}
}

func TestLayerNorm(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, n := range []int{1, 7, 16, 128, 700, 2056} {
			for _, layout := range []func(kernels.DType, int, int, float64) cudatest.Operand{cudatest.Normal,
				cudatest.Strided} {
				cudatest.Both(t, fmt.Sprint("layer norm of ", n), []cudatest.Operand{layout(dtype, 9, n, 1),
					layout(dtype, 9, n, 3),
					cudatest.Normal(dtype, 1, n, 1), cudatest.Normal(dtype, 1, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.(kernels.SparseAttention).LayerNorm(x[0], x[1], x[2], x[3], 1e-6)
						d.(kernels.SparseAttention).LayerNorm(x[1], x[1], x[2], x[3], 1e-6)
					})
			}
		}
	}
}
