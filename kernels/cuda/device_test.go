//go:build cuda

package cuda

import (
	"embed"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestMain(m *testing.M) { cudatest.Main(m, New, embed.FS{}) }

// The comparison can fail.
func TestDifferences(t *testing.T) {
	x := []cudatest.Operand{cudatest.Normal(kernels.BF16, 3, 100, 1), cudatest.Normal(kernels.BF16, 3, 100, 1)}
	n, _ := cudatest.Differences(t, x, func(d kernels.Device, x []kernels.Tensor) {
		d.Scale(x[0], x[1], 1)
	}, func(d kernels.Device, x []kernels.Tensor) { d.Scale(x[0], x[1], 1.01) })
	if n == 0 {
		t.Error("another factor is not noticed")
	}
}
