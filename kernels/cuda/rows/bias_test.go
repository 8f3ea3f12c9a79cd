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
			for _, s := range [][3]int{{1, 1, 1}, {33, 77, 1}, {1000, 640, 1}, {700, 100, 6}} {
				r, n, groups := s[0], s[1], s[2]
				at := []int32{0, int32(r / 3), int32(r)}
				if groups > 1 { // of two packs each; some are empty
					at = []int32{0, 0, 1, 70, 70, 70, 70, 200, 260, 261, 600, 680, int32(r)}
				}
				g := func(t kernels.Tensor) *kernels.Groups {
					return &kernels.Groups{Offsets: t, Count: groups, Packs: 2}
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
