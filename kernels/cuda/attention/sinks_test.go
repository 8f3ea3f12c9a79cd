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
			x := []cudatest.Operand{cudatest.Strided(dtype, r, heads*dim, 1),
				cudatest.Strided(kernels.F32, r, heads, 6), cudatest.Normal(dtype, 1, heads, 4),
				cudatest.Normal(kernels.F32, 1, heads, 1), cudatest.Strided(dtype, r, heads*dim, 1)}
			for _, segments := range cudatest.Segmentations(r) {
				cudatest.BySegment(t, fmt.Sprint("sinks ", s), x, segments, func(d kernels.Device, x []kernels.Tensor,
					p cudatest.Part, segments []int32) {
					out, lse := p.Rows(x[0]), p.Rows(x[1])
					d.Sinks(out, lse, x[2])
					d.SinksBackward(x[3], p.Rows(x[4]), out, lse, x[2], segments)
				})
			}
		}
	}
}
