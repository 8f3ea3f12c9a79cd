//go:build cuda

package rows

import (
	"testing"
	"unsafe"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/quant"
)

// draws are distributions, keys and places that use all bits.
var draws = []kernels.Draw{
	{Kind: kernels.DrawConstant, Scale: 1}, {Kind: kernels.DrawConstant},
	{Kind: kernels.DrawUniform, Key: 1<<63 + 12345, Scale: 0.0221},
	{Kind: kernels.DrawUniform, Key: 5, First: 1<<40 + 3, Scale: 1e-41}, // subnormal in fp32
	{Kind: kernels.DrawNormal, Key: 0xfedcba9876543210, Scale: 0.02},
	{Kind: kernels.DrawNormal, Key: 1, First: 1<<33 - 5, Scale: 1.0 / 3},
}

func TestDraw(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, n := range []int{1, 7, 8, 100, 5000} {
			for _, o := range draws {
				cudatest.Both(t, "Draw", []cudatest.Operand{cudatest.Normal(dtype, 1, n+3, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.Draw(x[0].ColRange(3, n+3), o) // not aligned to 16 bytes
					})
				cudatest.Both(t, "Draw", []cudatest.Operand{cudatest.Grouped(dtype, 3, 5, n, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) { d.Draw(x[0], o) })
			}
		}
	}
}

// The comparison notices another key, place and scale.
func TestDrawNoticed(t *testing.T) {
	right := kernels.Draw{Kind: kernels.DrawNormal, Key: 7, First: 9, Scale: 0.02}
	by := func(o kernels.Draw) func(d kernels.Device, x []kernels.Tensor) {
		return func(d kernels.Device, x []kernels.Tensor) { d.Draw(x[0], o) }
	}
	for i, change := range []func(o *kernels.Draw){
		func(o *kernels.Draw) { o.Key++ }, func(o *kernels.Draw) { o.First++ },
		func(o *kernels.Draw) { o.Scale *= 1.001 }, func(o *kernels.Draw) { o.Kind = kernels.DrawUniform }} {
		wrong := right
		change(&wrong)
		x := []cudatest.Operand{cudatest.Normal(kernels.BF16, 3, 50, 1)}
		if n, _ := cudatest.Differences(t, x, by(right), by(wrong)); n == 0 {
			t.Errorf("change %d is not noticed", i)
		}
	}
}

// Codes and scales are the CPU's on every byte, of any number of them in a matrix, from any matrix on.
func TestDrawCodes(t *testing.T) {
	for _, e := range quant.Encodings {
		for _, c := range [][3]int{{1, 1, 1}, {2, 3, 33}, {3, 5, 64}, {4, 128, 256}} {
			codes, scales := codesAndScales(e, c[0], c[1], c[2])
			draw := func(first int) func(d kernels.Device, x []kernels.Tensor) {
				return func(d kernels.Device, x []kernels.Tensor) {
					w := kernels.QuantizedWeight{Format: e.Format(), DType: kernels.BF16, Groups: c[0], Rows: c[1],
						Cols: c[2], Codes: x[0], Scales: x[1]}
					d.(kernels.QuantizedProducts).DrawCodes(w, 1<<63+77, first, 0.0371)
				}
			}
			operands := []cudatest.Operand{codes, scales}
			if n, at := cudatest.Differences(t, operands, draw(5), draw(5)); n > 0 {
				t.Errorf("%s, %v: %d bytes differ, first %s", e, c, n, at)
			}
			if n, _ := cudatest.Differences(t, operands, draw(5), draw(6)); n == 0 {
				t.Errorf("%s, %v: another matrix is not noticed", e, c)
			}
		}
	}
}

// A card draws into pinned memory, where the host reads the CPU's bits after Sync.
func TestDrawPinned(t *testing.T) {
	var drawn [][]byte
	pinned := func(d kernels.Device, x []kernels.Tensor) {
		const n, cols = 1000, 96
		memory := func(dtype kernels.DType, groups, rows, cols int) kernels.Tensor {
			t := kernels.Tensor{DType: dtype, Groups: groups, Rows: rows, Cols: cols, Stride: cols}
			t.Data = unsafe.Pointer(unsafe.SliceData(d.(kernels.HostMemory).Pin(t.Bytes())))
			return t
		}
		numbers := memory(kernels.BF16, 1, 1, n)
		d.Draw(numbers, draws[4])
		w := kernels.NewQuantizedWeight(quant.INT4.Format(), kernels.BF16, 2, 8, cols, memory)
		d.(kernels.QuantizedProducts).DrawCodes(w, 3, 0, 0.5)
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		drawn = append(drawn, append(append(numbers.Raw(), w.Codes.Raw()...), w.Scales.Raw()...))
		d.Draw(x[0], draws[4])
	}
	cudatest.Both(t, "Draw", []cudatest.Operand{cudatest.Normal(kernels.BF16, 1, 8, 1)}, pinned)
	if len(drawn) != 2 || string(drawn[0]) != string(drawn[1]) {
		t.Error("pinned memory differs from the CPU's")
	}
}
