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

// The gradients of the weights, of one segment and of several.
func TestShortConvSegments(t *testing.T) {
	const n, taps = 40, 4
	l := packed(1, 2, 63, 64, 65, 130)
	rows := l.Rows()
	for _, dtype := range cudatest.DTypes {
		batch := func() cudatest.Operand { return cudatest.Normal(dtype, rows, n, 1) }
		x := []cudatest.Operand{batch(), cudatest.Normal(kernels.F32, n, taps, 1),
			cudatest.Normal(kernels.F32, 1, n, 1), batch(), batch(), cudatest.Normal(dtype, n, taps, 1),
			cudatest.Normal(dtype, 1, n, 1)}
		for _, segments := range [][]int32{{0, 325}, {0, 1, 130, 325}, {0, 3, 3, 66, 195, 325}} {
			cudatest.BySegment(t, "short convolution backward", x, segments, func(d kernels.Device, x []kernels.Tensor,
				p cudatest.Part, segments []int32) {
				d.(kernels.Recurrent).ShortConvBackward(p.Rows(x[0]), x[1], x[2], p.Rows(x[3]), p.Rows(x[4]), x[5],
					x[6], part(l, p, segments))
			})
		}
	}
}
