package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
	"lockstep/quant"
)

// CheckQuantized accepts every format and shape.
func (d *Device) CheckQuantized(kernels.QuantizedWeight) error { return nil }

// Dequantize: out = round(code*scale).
func (d *Device) Dequantize(out kernels.Tensor, w kernels.QuantizedWeight) {
	if s := w.Shape(); out.DType != s.DType || out.Groups != s.Groups || out.Rows != s.Rows || out.Cols != s.Cols ||
		!out.Contiguous() {
		panic(fmt.Sprintf("cpu: Dequantize: %s to %s", w, out))
	}
	d.pool.each(w.Groups*w.Rows, max(1, (1<<16)/max(w.Cols, 1)), func(_, from, to int) {
		d.mm.Dequantize(out, w, from, to)
	})
}

// Quantize puts numbers into codes and scales.
func (d *Device) Quantize(w kernels.QuantizedWeight, x kernels.Tensor, e quant.Encoding, starts []int) {
	if x.DType != kernels.F32 || x.Groups != w.Groups || x.Rows != w.Rows || x.Cols != w.Cols || !x.Contiguous() ||
		w.Format != e.Format() {
		panic(fmt.Sprintf("cpu: Quantize: %s to %s by %s", x, w, e))
	}
	var blocks [][2]int // rows, counted through all groups
	for g := range w.Groups {
		for i, from := range starts {
			to := w.Rows
			if i+1 < len(starts) {
				to = starts[i+1]
			}
			for ; from < to; from += e.High() {
				blocks = append(blocks, [2]int{g*w.Rows + from, g*w.Rows + min(from+e.High(), to)})
			}
		}
	}
	values := x.F32s()
	d.pool.each(len(blocks), max(1, (1<<15)/max(w.Cols*e.High(), 1)), func(_, from, to int) {
		for _, b := range blocks[from:to] {
			w.EncodeRows(e, b[0], values[b[0]*w.Cols:b[1]*w.Cols])
		}
	})
}

// CheckCodes accepts every weight in E4M3.
func (d *Device) CheckCodes(kernels.QuantizedWeight) error { return nil }

// QuantizeRows puts rows into codes.
func (d *Device) QuantizeRows(w kernels.QuantizedWeight, x kernels.Tensor) {
	mustShape("QuantizeRows", "x", x, w.Rows, w.Cols)
	if w.Groups != 1 || w.Format != quant.FP8x128.Format() {
		panic(fmt.Sprintf("cpu: QuantizeRows: %s to %s", x, w))
	}
	in := d.matrix(x)
	d.pool.each(w.Rows, max(1, rowWork/max(w.Cols, 1)), func(_, from, to int) {
		values := make([]float32, w.Cols)
		for r := from; r < to; r++ {
			w.EncodeRows(quant.FP8x128, r, in.load(r, values))
		}
	})
}

// operandOf is a term's weight as an operand, of one group.
func operandOf(t kernels.Term) gemm.Operand {
	if t.Q != nil {
		return gemm.OfQuantized(*t.Q)
	}
	return gemm.Of(t.W)
}

// inputOf is a term's input as an operand; in codes its rows from `first` on.
func inputOf(t kernels.Term, first int) gemm.Operand {
	if t.XQ != nil {
		return gemm.OfQuantized(*t.XQ).From(first, 0)
	}
	return gemm.Of(t.X)
}

// ofGroup is a term for the rows x of a group, with its matrix.
func ofGroup(t kernels.Term, x kernels.Tensor, g int) kernels.Term {
	t.X = x
	if t.Q != nil {
		q := t.Q.Group(g)
		t.Q = &q
		return t
	}
	t.W = t.W.Group(g)
	return t
}
