//go:build cuda

package rows

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestGatedNorms(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][3]int{{1, 1, 8}, {130, 3, 20}, {70, 4, 128}, {66, 40, 40}, {66, 2, 250}, {66, 2, 600}} {
			r, heads, n := s[0], s[1], s[2]
			segments := []int32{0, int32(r / 3), int32(r)}
			x := []cudatest.Operand{cudatest.Normal(dtype, r, heads*n, 1), cudatest.Strided(kernels.F32, r, heads, 1),
				cudatest.Strided(dtype, r, heads*n,
					1), cudatest.Strided(dtype, r, heads*n, 3), cudatest.Strided(dtype, r, heads*n, 1),
				cudatest.Normal(dtype, r, heads*n, 1), cudatest.Strided(dtype, r, heads*n, 1)}
			if n <= 256 { // as they are written
				cudatest.Both(t, fmt.Sprint("norm then gate ", s), append(x, cudatest.Normal(kernels.F32, 1, n, 1),
					cudatest.Normal(kernels.F32, 1, n, 1)), func(d kernels.Device, x []kernels.Tensor) {
					g := d.(kernels.DeltaNet)
					g.NormThenGate(x[0], x[1], x[2], x[3], x[7], 1e-6)
					g.NormThenGateBackward(x[4], x[5], x[8], x[6], x[2], x[3], x[1], x[7], segments)
					g.NormThenGateBackward(x[6], x[5], kernels.Tensor{}, x[4], x[2], x[3], x[1], x[7], segments)
				})
			}
			cudatest.Both(t, fmt.Sprint("gate then norm ", s), append(x, cudatest.Normal(dtype, 1, heads*n, 1),
				cudatest.Normal(kernels.F32, 1, heads*n, 1)), func(d kernels.Device, x []kernels.Tensor) {
				g := d.(kernels.Mamba)
				g.GateThenNorm(x[0], x[1], x[2], x[3], x[7], heads, 1e-5)
				g.GateThenNormBackward(x[4], x[5], x[8], x[6], x[2], x[3], x[1], x[7], heads, segments)
				g.GateThenNormBackward(x[6], x[5], kernels.Tensor{}, x[4], x[2], x[3], x[1], x[7], heads, segments)
			})
		}
	}
}
