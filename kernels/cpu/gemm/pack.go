package gemm

import "unsafe"

// pack is [set.pack] of an operand that may be in codes.
func (e *Engine) pack(s *Scratch, dst []float32, ds int, o Operand, rows, cols int) {
	if o.Q != nil {
		e.packCodes(s, dst, ds, o, rows, cols)
		return
	}
	e.set.pack(dst, ds, o, rows, cols)
}

// pack writes o, [rows, cols], to dst[i*ds+j] in fp32. dst has room for rows and columns rounded up to lanes; what lies
// there beyond rows and cols is unspecified, and so are the results computed from it, which are not read.
func (s *set) pack(dst []float32, ds int, o Operand, rows, cols int) {
	switch {
	case o.CS == 1:
		s.copyRows(dst, ds, o, rows, cols)
	case o.RS == 1:
		for j := 0; j < cols; j += s.lanes { // memory rows are columns of o
			s.transpose(dst[j:], ds, o.From(0, j), min(s.lanes, cols-j), rows)
		}
	default:
		for i := range rows {
			for j := range cols {
				dst[i*ds+j] = o.at(i, j)
			}
		}
	}
}

// copyRows packs rows that are contiguous in memory.
func (s *set) copyRows(dst []float32, ds int, o Operand, rows, cols int) {
	n := s.vectorised(cols)
	switch {
	case n == 0:
	case o.H != nil:
		s.copyRowsBF16(&dst[0], ds, &o.H[0], o.RS, rows, n)
	default:
		s.copyRowsF32(&dst[0], ds, &o.F[0], o.RS, rows, n)
	}
	for i := range rows {
		for j := n; j < cols; j++ {
			dst[i*ds+j] = o.at(i, j)
		}
	}
}

// transpose packs `cols` columns, at most lanes, that are contiguous in memory, `rows` elements each.
func (s *set) transpose(dst []float32, ds int, o Operand, cols, rows int) {
	n := s.vectorised(rows)
	switch {
	case n == 0:
	case o.H != nil:
		s.transposeBF16(&dst[0], ds, &o.H[0], o.CS, cols, n)
	default:
		s.transposeF32(&dst[0], ds, &o.F[0], o.CS, cols, n)
	}
	for i := n; i < rows; i++ {
		for j := range cols {
			dst[i*ds+j] = o.at(i, j)
		}
	}
}

// vectorised is how many of n contiguous elements the packing loops take.
func (s *set) vectorised(n int) int {
	if s.masks {
		return n
	}
	return n / s.lanes * s.lanes
}

func (s *set) roundUp(n int) int { return (n + s.lanes - 1) / s.lanes * s.lanes }

const alignment = 64 // bytes; loads of a register should not cross cache lines

// aligned is memory for n values from a multiple of the alignment, s itself if it is large enough. Its content is lost.
func aligned(s []float32, n int) []float32 {
	if len(s) >= n {
		return s
	}
	s = make([]float32, n+alignment/4)
	off := -int(uintptr(unsafe.Pointer(unsafe.SliceData(s)))) & (alignment - 1)
	return s[off/4:]
}
