//go:build cuda

package rows

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestElementwise(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][2]int{{1, 1}, {3, 100}, {257, 513}, {5, 4096}, {65536, 24}} {
			r, c := s[0], s[1]
			cudatest.Both(t, "add", []cudatest.Operand{cudatest.Strided(dtype, r, c, 1), cudatest.Normal(dtype, r, c,
				1), cudatest.Strided(dtype, r, c, 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Add(x[0], x[1], x[2])
				})
			cudatest.Both(t, "scale", []cudatest.Operand{cudatest.Normal(dtype, r, c, 1), cudatest.Strided(dtype, r, c,
				1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Scale(x[0], x[1], 0.37)
				})
			cudatest.Both(t, "zero", []cudatest.Operand{cudatest.Strided(dtype, r, c, 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Zero(x[0])
				})
			for _, to := range cudatest.DTypes {
				cudatest.Both(t, "copy", []cudatest.Operand{cudatest.Strided(to, r, c, 1), cudatest.Normal(dtype, r, c,
					1e-3)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.Copy(x[0], x[1])
					})
			}
		}
	}
	for _, s := range [][2]int{{1, 3}, {3, 100}, {5, 4099}, {0, 7}} {
		cudatest.Both(t, "accumulate", []cudatest.Operand{cudatest.Normal(kernels.F32, 1, s[1], 1),
			cudatest.Strided(kernels.F32, s[0], s[1], 1)},
			func(d kernels.Device, x []kernels.Tensor) {
				d.Accumulate(x[0], x[1])
			})
	}
	// More sums than one launch has, of other lengths and numbers of parts.
	many := []cudatest.Operand{cudatest.Normal(kernels.F32, 1, 9000, 1), cudatest.Normal(kernels.F32, 3, 9000, 1)}
	cudatest.Both(t, "accumulate many", many, func(d kernels.Device, x []kernels.Tensor) {
		var sums []kernels.PartSum
		for at := range elementwiseMostSums + 2 {
			from, to := at*(at+1), (at+1)*(at+2) // of 2, 4, 6 ... columns
			sums = append(sums, kernels.PartSum{Dst: x[0].ColRange(from, to),
				Parts: x[1].RowRange(0, 1+at%3).ColRange(from, to)})
		}
		d.Accumulate(sums[0].Dst, sums[0].Parts, sums[1:]...)
	})
	// Whole warps of columns, and the rest of a row, from any column on.
	cudatest.Both(t, "accumulate, zero, from a column on", []cudatest.Operand{cudatest.Normal(kernels.F32, 1, 3000, 1),
		cudatest.Normal(kernels.F32, 6, 3000, 1)},
		func(d kernels.Device, x []kernels.Tensor) {
			d.Accumulate(x[0].ColRange(4, 2700), x[1].ColRange(4, 2700))
			d.Accumulate(x[0].ColRange(1, 2700), x[1].RowRange(0, 3).ColRange(2, 2701))
			d.Zero(x[1].ColRange(1, 600))
			d.Zero(x[1].ColRange(600, 1200))
		})
	cudatest.Both(t, "copy int32", []cudatest.Operand{cudatest.Ints(1, 9, cudatest.Below(9, 100)),
		cudatest.Ints(1, 9, cudatest.Below(9, 100))},
		func(d kernels.Device, x []kernels.Tensor) {
			d.Copy(x[0], x[1])
		})
}
