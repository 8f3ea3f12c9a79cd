package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
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
		gemm.Dequantize(out, w, from, to)
	})
}

// operandOf is a term's weight as an operand, of one group.
func operandOf(t kernels.Term) gemm.Operand {
	if t.Q != nil {
		return gemm.OfQuantized(*t.Q)
	}
	return gemm.Of(t.W)
}

// ofGroup is a term for the rows x of a group, with its matrix.
func ofGroup(t kernels.Term, x kernels.Tensor, g int) kernels.Term {
	if t.X = x; t.Q != nil {
		q := t.Q.Group(g)
		t.Q = &q
		return t
	}
	t.W = t.W.Group(g)
	return t
}
