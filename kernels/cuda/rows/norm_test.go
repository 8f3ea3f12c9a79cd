//go:build cuda

package rows

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestNorm(t *testing.T) {
	for i, dtype := range cudatest.DTypes {
		for j, s := range [][2]int{{1, 1}, {3, 100}, {100, 256}, {9, 300}, {200, 513}, {130, 1024}, {1000, 2048},
			{1056, 1024}, {1057, 2048}, {70, 4096}, {1056, 4096}, {70, 7168}, {66, 5001}, {65536, 40}} {
			r, n := s[0], s[1]
			norms := []kernels.Norm{{Eps: 1e-6}, {Eps: 1e-5, PlusOne: true}}
			if r*n > 1<<18 { // each norm with one of the types
				norms = norms[(i+j)%2:][:1]
			}
			for _, norm := range norms {
				segments := []int32{0, int32(r / 3), int32(r)}
				cudatest.Both(t, "rms norm", []cudatest.Operand{cudatest.Strided(dtype, r, n, 1),
					cudatest.Normal(kernels.F32, 1, r, 1),
					cudatest.Strided(dtype, r, n, 3), cudatest.Normal(dtype, 1, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) { d.RMSNorm(x[0], x[1], x[2], x[3], norm) })
				cudatest.Both(t, "add and rms norm", []cudatest.Operand{cudatest.Strided(dtype, r, n, 1),
					cudatest.Normal(dtype, r, n, 1), cudatest.Normal(kernels.F32, 1, r, 1),
					cudatest.Strided(dtype, r, n, 3), cudatest.Strided(dtype, r, n, 3),
					cudatest.Normal(dtype, 1, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.AddRMSNorm(x[0], x[1], x[2], x[3], x[4], x[5], norm)
						d.AddRMSNorm(x[0], x[4], x[2], x[3], x[4], x[5], norm) // in place
					})
				cudatest.Both(t, "rms norm backward", []cudatest.Operand{cudatest.Normal(dtype, r, n, 1),
					cudatest.Normal(kernels.F32, 1, n, 1),
					cudatest.Strided(dtype, r, n, 1), cudatest.Normal(dtype, r, n, 1), cudatest.Positive(1, r),
					cudatest.Normal(dtype, 1, n, 1), cudatest.Grouped(kernels.F32, len(segments)-1, 1, n, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.RMSNormBackward(x[0], x[1], x[2], x[3], x[4], x[5], norm, segments)
						d.RMSNormBackward(x[0], x[6], x[2], x[3], x[4], x[5], norm, segments) // a sum for each segment
						d.RMSNormBackward(x[0], kernels.Tensor{}, x[2], x[3], x[4], x[5], norm, segments)
					})
			}
		}
	}
}
