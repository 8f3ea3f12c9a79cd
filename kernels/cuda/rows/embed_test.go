//go:build cuda

package rows

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestEmbed(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][3]int{{1, 1, 8}, {100, 7, 100}, {1000, 50, 513}, {5000, 3000, 256}, {33, 50, 7168},
			{65536, 400, 16}} {
			tokens, vocab, width := s[0], s[1], s[2]
			segments := kernels.CutSegments([]int32{0, int32(tokens / 3), int32(tokens)}, 400)
			ids := cudatest.Ints(1, tokens, cudatest.Below(tokens, vocab))
			cudatest.Both(t, "embed", []cudatest.Operand{cudatest.Normal(dtype, tokens, width, 1),
				cudatest.Normal(dtype, vocab, width, 1), ids},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Embed(x[0], x[1], x[2])
				})
			cudatest.Both(t, "embed backward", []cudatest.Operand{cudatest.Normal(kernels.F32, vocab, width, 1),
				cudatest.Strided(dtype, tokens, width, 1),
				ids}, func(d kernels.Device, x []kernels.Tensor) {
				d.EmbedBackward(x[0], x[1], x[2], segments)
			})
		}
	}
}
