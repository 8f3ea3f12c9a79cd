package gemm

import (
	"lockstep/kernels"
	"lockstep/quant"
)

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
		dequantizeRow(s.codes[i*each:(i+1)*each], *o.Q, o.first+i*o.Q.Cols)
	}
	out := Operand{F: s.codes, RS: each, CS: 1}
	if o.CS != 1 {
		return out.T()
	}
	return out
}

// dequantizeRow writes the numbers of one row of a weight from an element on.
func dequantizeRow(dst []float32, w kernels.QuantizedWeight, first int) {
	row, col := first/w.Cols, first%w.Cols
	codes := w.Codes.RowRange(row, row+1).Raw()
	for len(dst) > 0 {
		n := min(len(dst), w.Format.Wide-col%w.Format.Wide)
		w.Format.Decode(dst[:n], codes, col, scaleAt(w, row, col/w.Format.Wide))
		if w.DType == kernels.BF16 {
			for i, x := range dst[:n] {
				dst[i] = kernels.FromBF16(kernels.RoundBF16(x))
			}
		}
		dst, col = dst[n:], col+n
	}
}

// scaleAt is the scale of a block of a row.
func scaleAt(w kernels.QuantizedWeight, row, block int) float32 {
	at := block*w.Scales.Stride + row
	switch w.Format.Scale {
	case quant.ScaleE8M0:
		return quant.PowerOfTwo(w.Scales.Raw()[at])
	case quant.ScaleBF16:
		return kernels.FromBF16(w.Scales.BF16s()[at])
	}
	return w.Scales.F32s()[at]
}

// Dequantize writes rows [from, to) of a quantized weight, counted through all groups, to a contiguous tensor.
func Dequantize(out kernels.Tensor, w kernels.QuantizedWeight, from, to int) {
	line := make([]float32, w.Cols)
	for r := from; r < to; r++ {
		g := w.Group(r / w.Rows)
		dequantizeRow(line, g, r%w.Rows*w.Cols)
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
