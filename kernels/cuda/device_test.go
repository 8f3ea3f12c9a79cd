//go:build cuda

package cuda

import (
	"embed"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/attention"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
	"lockstep/kernels/cuda/gemm"
	"lockstep/kernels/cuda/moe"
	"lockstep/kernels/cuda/recurrent"
	"lockstep/kernels/cuda/rows"
	"lockstep/kernels/cuda/sample"
	"lockstep/kernels/cuda/selftest"
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

// The kernels that launchgen read in the sources are those that the compiler made of them; without wgmma, some of them.
func TestKernels(t *testing.T) {
	all := slices.Concat(driver.Kernels, attention.Kernels, gemm.Kernels, moe.Kernels, recurrent.Kernels, rows.Kernels,
		sample.Kernels, selftest.Kernels)
	compiled := cudatest.GPU.Kernels()
	for name := range compiled {
		if !slices.Contains(all, name) {
			t.Errorf("no launcher knows the kernel %s", name)
		}
	}
	for _, name := range all {
		if compiled[name] == "" && gemm.HasWgmma(cudatest.GPU) {
			t.Errorf("no source has the kernel %s", name)
		}
	}
}

// A launch of a kernel that there is not panics, also on a device that computes nothing.
func TestNoKernel(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a kernel without a name in the sources was launched")
		}
	}()
	cudatest.GPU.Meta().Launch("swiglu_f16", [3]int{1, 1, 1}, 32, 0, nil)
}
