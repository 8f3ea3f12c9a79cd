//go:build cuda

package sample

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestLogProb(t *testing.T) {
	// of 3001, rows begin anywhere
	for _, s := range [][2]int{{1, 5}, {40, 480}, {9, 1024}, {6, 3001}, {7, 5000}, {3, 151936}} {
		rows, vocab := s[0], s[1]
		targets := cudatest.Below(rows, vocab)
		if rows > 1 {
			targets[1] = -1
		}
		for _, dtype := range cudatest.DTypes {
			for _, tempered := range []bool{false, true} {
				cudatest.Both(t, fmt.Sprint("log prob, tempered ", tempered),
					[]cudatest.Operand{cudatest.Normal(kernels.F32, 1, rows, 1),
						cudatest.Normal(kernels.F32, rows, 2, 1), cudatest.Strided(kernels.F32, rows, vocab, 4),
						cudatest.Ints(1, rows, targets),
						cudatest.Normal(kernels.F32, 1, rows, 1), cudatest.Normal(dtype, rows, vocab, 1),
						cudatest.Positive(1, rows)},
					func(d kernels.Device, x []kernels.Tensor) {
						var inv kernels.Tensor
						if tempered {
							inv = x[6]
						}
						d.LogProb(x[0], x[1], x[2], x[3], inv)
						d.LogProbBackward(x[5], x[4], x[1], x[2], x[3], inv)
					})
			}
		}
	}
	zeros := cudatest.Normal(kernels.F32, 2, 2048, 1) // -0, whose largest is +0
	for i := range zeros.Raw {
		zeros.Raw[i] = byte(i % 4 / 3 * 0x80)
	}
	cudatest.Both(t, "log prob of zeros", []cudatest.Operand{cudatest.Normal(kernels.F32, 1, 2, 1),
		cudatest.Normal(kernels.F32, 2, 2, 1), zeros,
		cudatest.Ints(1, 2, []int32{7, 2047})},
		func(d kernels.Device, x []kernels.Tensor) { d.LogProb(x[0], x[1], x[2], x[3], kernels.Tensor{}) })
}
