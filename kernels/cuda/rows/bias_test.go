//go:build cuda

package rows

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestBias(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, bias := range cudatest.DTypes {
			// rows, columns, groups and the segments of each
			for _, s := range [][4]int{{1, 1, 1, 2}, {33, 77, 1, 2}, {1000, 640, 1, 2}, {700, 100, 1, 12},
				{700, 100, 4, 3}, {700, 100, 6, 2}, {700, 100, 12, 1}} {
				r, n, groups, segments := s[0], s[1], s[2], s[3]
				at := []int32{0, int32(r / 3), int32(r)}
				if groups*segments > 2 { // some are empty
					at = []int32{0, 0, 1, 70, 70, 70, 70, 200, 260, 261, 600, 680, int32(r)}
				}
				g := func(t kernels.Tensor) *kernels.Groups {
					return &kernels.Groups{Offsets: t, Count: groups, Segments: segments}
				}
				cudatest.Both(t, fmt.Sprint("bias ", s), []cudatest.Operand{cudatest.Strided(dtype, r, n, 1),
					cudatest.Strided(dtype, r, n, 1),
					cudatest.Grouped(bias, groups, 1, n, n, 1), cudatest.Ints(1, len(at), at),
					cudatest.Normal(kernels.F32, groups, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.AddBias(x[0], x[1], x[2], g(x[3]))
						if groups == 1 {
							d.AddBias(x[1], x[1], x[2], nil)
						}
						x[4].Groups, x[4].Rows = groups, 1
						d.BiasGrad(x[4], x[0], g(x[3]))
					})
			}
		}
	}
}
