package gemm

import "lockstep/kernels"

// pack is [set.pack] of an operand that may be in codes.
func (e *Engine) pack(s *Scratch, dst []float32, ds int, o Operand, rows, cols int) {
	if o.Q != nil {
		o = e.dequantized(s, o, rows, cols)
	}
	e.set.pack(dst, ds, o, rows, cols)
}

// dequantized is [rows, cols] of an operand in codes as fp32 in scratch memory, in the order of its own memory.
func (e *Engine) dequantized(s *Scratch, o Operand, rows, cols int) Operand {
	lines, each := rows, cols // of o's memory
	if o.CS != 1 {
		lines, each = cols, rows
	}
	s.codes = aligned(s.codes, lines*each)
	for i := range lines {
		at := o.first + i*o.Q.Cols
		o.Q.DecodeRow(s.codes[i*each:(i+1)*each], at/o.Q.Cols, at%o.Q.Cols)
	}
	out := Operand{F: s.codes, RS: each, CS: 1}
	if o.CS != 1 {
		return out.T()
	}
	return out
}

// Dequantize writes rows [from, to) of a quantized weight, counted through all groups, to a contiguous tensor.
func Dequantize(out kernels.Tensor, w kernels.QuantizedWeight, from, to int) {
	line := make([]float32, w.Cols)
	for r := from; r < to; r++ {
		w.DecodeRow(line, r, 0)
		at := r * w.Cols
		if out.DType == kernels.F32 {
			copy(out.F32s()[at:], line)
			continue
		}
		for i, x := range line {
			out.BF16s()[at+i] = kernels.RoundBF16(x)
		}
	}
}
