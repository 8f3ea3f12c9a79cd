package gemm

import (
	"lockstep/kernels"
	"lockstep/quant"
)

const (
	dequantizeCols = 32 // columns that the loops take at a time
	dequantizeRows = 16 // rows that are transposed from the first-level cache, a multiple of the lanes
)

// packCodes is [set.pack] of an operand in codes. Each of its numbers is decoded once.
func (e *Engine) packCodes(s *Scratch, dst []float32, ds int, o Operand, rows, cols int) {
	if o.CS == 1 {
		e.dequantize(s, dst, ds, o, rows, cols)
		return
	}
	s.codes = aligned(s.codes, dequantizeRows*rows)
	for j := 0; j < cols; j += dequantizeRows { // rows of the weight are columns of o
		n := min(dequantizeRows, cols-j)
		e.dequantize(s, s.codes, rows, o.From(0, j).T(), n, rows)
		e.set.pack(dst[j:], ds, Operand{F: s.codes, RS: 1, CS: rows}, rows, n)
	}
}

// dequantize writes numbers of a weight to dst[i*ds+j]: [rows, cols] of o, whose rows are the weight's own.
func (e *Engine) dequantize(s *Scratch, dst []float32, ds int, o Operand, rows, cols int) {
	row, col := o.first/o.Q.Cols, o.first%o.Q.Cols
	begun := 0 // columns of a block that began before col
	if n := col % o.Q.Format.Wide; n > 0 {
		begun = min(o.Q.Format.Wide-n, cols)
		e.dequantizeBlocks(s, dst, ds, o.Q, row, col, rows, begun)
	}
	if begun < cols {
		e.dequantizeBlocks(s, dst[begun:], ds, o.Q, row, col+begun, rows, cols-begun)
	}
}

// dequantizeBlocks is dequantize of columns that begin a block, or lie in one.
func (e *Engine) dequantizeBlocks(s *Scratch, dst []float32, ds int, w *kernels.QuantizedWeight, row, col,
	rows, cols int) {
	n := e.set.decodable(w, col, cols)
	if n > 0 {
		first := col / w.Format.Wide
		blocks, wide := (col+n-1)/w.Format.Wide-first+1, w.Format.Wide
		if blocks == 1 {
			wide = n
		}
		s.scales = aligned(s.scales, blocks*rows)
		for b := range blocks {
			w.DecodeScales(s.scales[b*rows:][:rows], (first+b)*w.Rows+row)
		}
		codes, stride := w.Codes.Raw(), w.Codes.Cols
		at := row*stride + col*w.Format.Code.Bits()/8
		e.set.dequantize[w.Format.Code](&dst[0], &codes[at], &s.scales[0], ds, stride, rows, wide, rows, n,
			w.DType == kernels.BF16)
	}
	for i := 0; i < rows && n < cols; i++ {
		w.DecodeRow(dst[i*ds+n:][:cols-n], row+i, col+n)
	}
}

// decodable is how many of a row's columns from one on the set's loops take: a multiple of 32, of blocks that are
// multiples of it or one block, from the first code of a byte on.
func (s *set) decodable(w *kernels.QuantizedWeight, col, cols int) int {
	wide := w.Format.Wide
	oneBlock := col/wide == (col+cols-1)/wide
	if s.dequantize == nil || col*w.Format.Code.Bits()%8 != 0 || !oneBlock && wide%dequantizeCols != 0 {
		return 0
	}
	return cols / dequantizeCols * dequantizeCols
}

// DequantizeMXFP8 writes rows of MXFP8 in fp32: dst[i*ds+j] = code * scale, codes of row i from codes[i*cs] on and
// those of E8M0 scales from scales[i*ss] on.
func (e *Engine) DequantizeMXFP8(s *Scratch, dst []float32, ds int, codes []byte, cs int, scales []byte, ss, rows,
	cols int) {
	f, n := quant.MXFP8.Format(), 0
	blocks := f.Blocks(cols)
	s.scales = aligned(s.scales, blocks*rows)
	for i := range rows {
		for b, power := range scales[i*ss:][:blocks] {
			s.scales[b*rows+i] = quant.PowerOfTwo(power)
		}
	}
	if e.set.dequantize != nil {
		n = cols / dequantizeCols * dequantizeCols
	}
	if n > 0 {
		e.set.dequantize[f.Code](&dst[0], &codes[0], &s.scales[0], ds, cs, rows, f.Wide, rows, n, false)
	}
	for b := n / f.Wide; b < blocks; b++ {
		from, to := b*f.Wide, min((b+1)*f.Wide, cols)
		for i := range rows {
			f.Decode(dst[i*ds+from:i*ds+to], codes[i*cs:], from, s.scales[b*rows+i])
		}
	}
}

// Dequantize writes rows [from, to) of a quantized weight, counted through all groups, to a contiguous tensor.
func (e *Engine) Dequantize(out kernels.Tensor, w kernels.QuantizedWeight, from, to int) {
	s := scratches.Get().(*Scratch)
	defer scratches.Put(s)
	for r := from; r < to; r++ {
		group := w.Group(r / w.Rows)
		line, at := OfQuantized(group).From(r%w.Rows, 0), r*w.Cols
		if out.DType == kernels.F32 {
			e.dequantize(s, out.F32s()[at:], w.Cols, line, 1, w.Cols)
			continue
		}
		s.codes = aligned(s.codes, w.Cols)
		e.dequantize(s, s.codes, w.Cols, line, 1, w.Cols)
		e.vec.Narrow(out.BF16s()[at:][:w.Cols], s.codes[:w.Cols])
	}
}
