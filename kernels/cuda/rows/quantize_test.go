//go:build cuda

package rows

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/quant"
)

// codesAndScales are memory for a weight of groups of matrices.
func codesAndScales(e quant.Encoding, groups, rows, cols int) (codes, scales cudatest.Operand) {
	f := e.Format()
	memory := func(d kernels.DType, rows, cols int) cudatest.Operand {
		o := cudatest.Operand{DType: d, Groups: groups, Rows: rows, Cols: cols, Stride: cols}
		for range groups * rows * cols * d.Size() {
			o.Raw = append(o.Raw, byte(cudatest.Rand.Uint32()))
		}
		return o
	}
	return memory(kernels.U8, rows, f.RowBytes(cols)), memory(kernels.ScaleType(f.Scale), f.Blocks(cols), rows)
}

// quantized is a weight over an operand's memory.
func quantized(e quant.Encoding, x, codes, scales kernels.Tensor) kernels.QuantizedWeight {
	return kernels.QuantizedWeight{Format: e.Format(), DType: kernels.F32, Groups: x.Groups, Rows: x.Rows, Cols: x.Cols,
		Codes: codes, Scales: scales}
}

// Codes and scales are the CPU's on every byte, of odd numbers too, in every part of every matrix.
func TestQuantize(t *testing.T) {
	for _, e := range quant.Encodings {
		for _, c := range []struct {
			groups, rows, cols int
			starts             []int
		}{{1, 1, 1, []int{0}}, {1, 3, 31, []int{0}}, {2, 5, 33, []int{0, 2}}, {3, 129, 200, []int{0}},
			{2, 300, 256, []int{0, 140, 141}}, {1, 130, 2048, []int{0, 128}}} {
			codes, scales := codesAndScales(e, c.groups, c.rows, c.cols)
			x := odd(kernels.F32, c.groups, c.rows, c.cols, c.cols, e.High(), e.Format().Wide)
			quantize := func(d kernels.Device, x []kernels.Tensor) {
				d.(kernels.QuantizedProducts).Quantize(quantized(e, x[2], x[0], x[1]), x[2], e, c.starts)
			}
			n, at := cudatest.Differences(t, []cudatest.Operand{codes, scales, x}, quantize, quantize)
			if n > 0 {
				t.Errorf("%s, %+v: %d bytes differ, first %s", e, c, n, at)
			}
		}
	}
}

// The comparison notices blocks that begin at other rows.
func TestQuantizeNoticed(t *testing.T) {
	const rows, cols = 200, 64
	codes, scales := codesAndScales(quant.FP8, 1, rows, cols)
	by := func(starts ...int) func(d kernels.Device, x []kernels.Tensor) {
		return func(d kernels.Device, x []kernels.Tensor) {
			d.(kernels.QuantizedProducts).Quantize(quantized(quant.FP8, x[2], x[0], x[1]), x[2], quant.FP8, starts)
		}
	}
	x := []cudatest.Operand{codes, scales, cudatest.Normal(kernels.F32, rows, cols, 1)}
	if n, _ := cudatest.Differences(t, x, by(0), by(0, 100)); n == 0 {
		t.Error("blocks of other rows have the same codes: " + fmt.Sprint(x[0]))
	}
}

// Rows in blocks of 1 x 128, strided, of both types.
func TestQuantizeRows(t *testing.T) {
	e := quant.FP8x128
	for _, c := range [][2]int{{1, 1}, {3, 130}, {130, 128}, {37, 304}, {5, 2048}} {
		for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
			codes, scales := codesAndScales(e, 1, c[0], c[1])
			x := odd(d, 1, c[0], c[1], c[1]+8, e.High(), e.Format().Wide)
			cudatest.Both(t, fmt.Sprint(d, c), []cudatest.Operand{codes, scales, x}, func(dev kernels.Device,
				on []kernels.Tensor) {
				dev.(kernels.QuantizedProducts).QuantizeRows(quantized(e, on[2], on[0], on[1]), on[2])
			})
		}
	}
}
