//go:build cuda

package recurrent

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestShortConv(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][2]int{{1, 2}, {100, 4}, {384, 4}, {513, 12}} {
			n, taps := s[0], s[1]
			for _, biased := range []bool{true, false} {
				bias := func(x kernels.Tensor) kernels.Tensor {
					if !biased {
						return kernels.Tensor{}
					}
					return x
				}
				l := packed(1, 2, 63, 64, 65, 130)
				rows := l.Rows()
				cudatest.Both(t, fmt.Sprintf("short convolution %d x %d, bias %v", n, taps, biased),
					[]cudatest.Operand{cudatest.Strided(dtype, rows, n, 1), cudatest.Strided(dtype, rows, n, 1),
						cudatest.Normal(dtype, n, taps, 1),
						cudatest.Normal(dtype, 1, n, 1),
						cudatest.Strided(dtype, rows, n, 1), cudatest.Normal(kernels.F32, n, taps, 1),
						cudatest.Normal(kernels.F32, 1, n, 1),
						cudatest.Normal(dtype, rows, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.(kernels.Recurrent).ShortConv(x[0], x[1], x[2], bias(x[3]), kernels.Tensor{}, l)
						d.(kernels.Recurrent).ShortConvBackward(x[4], x[5], bias(x[6]), x[7], x[1], x[2], bias(x[3]), l)
					})
				steps := served(5, 1, 2, 9, 30)
				rows = 0
				for _, l := range steps {
					rows += l.Rows()
				}
				cudatest.Both(t, fmt.Sprintf("cached short convolution %d x %d, bias %v", n, taps, biased),
					[]cudatest.Operand{cudatest.Strided(dtype, rows, n, 1), cudatest.Strided(dtype, rows, n, 1),
						cudatest.Normal(dtype, n, taps, 1),
						cudatest.Normal(dtype, 1, n, 1),
						cudatest.Grouped(dtype, 5, taps-1, n, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						row := 0
						for _, l := range steps {
							end := row + l.Rows()
							d.(kernels.Recurrent).ShortConv(x[0].RowRange(row, end), x[1].RowRange(row, end), x[2],
								bias(x[3]), x[4], l)
							row = end
						}
					})
			}
		}
	}
}
