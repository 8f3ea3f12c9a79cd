//go:build cuda

package rows_test

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/rows"
	"lockstep/quant"
)

// Two devices of a card read each other's memory, after what was enqueued before.
func TestCanRead(t *testing.T) {
	second, err := cuda.New(cudatest.Card.Definition(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	}()
	first := cudatest.Card.(*cuda.Device)
	if !second.CanRead(first) || !first.CanRead(second) || second.CanRead(cudatest.Reference) {
		t.Fatalf("reads the first: %t, is read: %t, reads the CPU: %t", second.CanRead(first),
			first.CanRead(second), second.CanRead(cudatest.Reference))
	}
	const length, cols = 2000, 1000
	x := []cudatest.Operand{cudatest.Normal(kernels.BF16, length, cols, 1), cudatest.Normal(kernels.F32, length, cols,
		1)}
	n, at := cudatest.Differences(t, x, func(d kernels.Device, x []kernels.Tensor) {
		d.Scale(x[1], x[1], 3)
		rows.ByQuant(d, x[0], x[1], quant.INT4)
	}, func(d kernels.Device, x []kernels.Tensor) {
		copied, _ := cudatest.Operand{DType: kernels.BF16, Groups: 1, Rows: length, Cols: cols, Stride: cols,
			Raw: make([]byte, 2*length*cols)}.On(second)
		d.Scale(x[1], x[1], 3)
		second.FakeQuantize(copied, x[1], quant.INT4)
		d.Copy(x[0], copied)
	})
	if n > 0 {
		t.Errorf("%d bytes differ, first %s", n, at)
	}
}
