//go:build cuda

package rows

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestSigmoidGate(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, s := range [][2]int{{1, 1}, {33, 77}, {500, 768}} {
			for _, one := range []bool{true, false} {
				r, n, gates := s[0], s[1], s[1]
				if one {
					gates = 1
				}
				cudatest.Both(t, fmt.Sprint("sigmoid gate ", s, one),
					[]cudatest.Operand{cudatest.Strided(dtype, r, n, 1), cudatest.Normal(dtype, r, n, 1),
						cudatest.Strided(dtype, r, gates, 4), cudatest.Normal(dtype, r, gates, 1),
						cudatest.Normal(dtype, r, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						g := d.(kernels.DeltaNet)
						g.SigmoidGate(x[0], x[1], x[2])
						g.SigmoidGateBackward(x[4], x[3], x[4], x[1], x[2])
						g.SigmoidGate(x[1], x[1], x[2])
					})
			}
		}
	}
}
