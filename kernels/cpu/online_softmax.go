package cpu

import (
	"math"

	"lockstep/kernels/cpu/vec"
)

// online is the state of an online softmax for the rows of a tile: the running maximum m (units of log2), the sum l of
// Exp2(u-m) and the sum o of Exp2(u-m)*v.
type online struct {
	m, l []float32 // [rows]
	o    []float32 // [rows, dim]
	dim  int
	some bool // o is not all +0
}

func (s *online) reset(rows, dim int) {
	s.m, s.l, s.o, s.dim = sized(s.m, rows), sized(s.l, rows), sized(s.o, rows*dim), dim
	for r := range s.m {
		s.m[r] = float32(math.Inf(-1))
	}
	s.some = false
	clear(s.l)
	clear(s.o)
}

func (s *online) row(r int) []float32 { return s.o[r*s.dim:][:s.dim] }

// scale multiplies each row of o by its decay a. It skips factors of 1 and rows of +0.
func (s *online) scale(a []float32, ops *vec.Ops) {
	if s.some {
		for r, x := range a {
			if x != 1 {
				ops.Scale(s.row(r), x)
			}
		}
	}
	s.some = true
}

// add merges a later split. Rows of it that saw no key change nothing.
func (s *online) add(t *online, ops *vec.Ops) {
	for r, mt := range t.m {
		if math.IsInf(float64(mt), -1) {
			continue
		}
		m := max(s.m[r], mt)
		a, b := ops.Exp2(s.m[r]-m), ops.Exp2(mt-m)
		s.l[r] = float32(s.l[r]*a) + float32(t.l[r]*b)
		ops.ScaleAdd(s.row(r), a, t.row(r), b)
		s.m[r] = m
	}
}
