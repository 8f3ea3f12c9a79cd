//go:build cuda

package rows

import (
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestDropout(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][2]int{{1, 1}, {3, 100}, {7, 513}, {5, 4096}, {65, 24}} {
			for _, o := range []kernels.Dropout{{},
				{Probability: 0.3, Seed: 1<<63 + 5, Step: 7, Layer: 1 << 31, Row: 9},
				{Probability: 0.999, Row: math.MaxUint32}} {
				cudatest.Both(t, "dropout", []cudatest.Operand{cudatest.Strided(dtype, s[0], s[1], 1),
					cudatest.Normal(dtype, s[0], s[1], 1)}, func(d kernels.Device, x []kernels.Tensor) {
					d.Dropout(x[0], x[1], o)
					d.Dropout(x[1], x[1], o)
				})
			}
		}
	}
}
