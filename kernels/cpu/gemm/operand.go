package gemm

import "lockstep/kernels"

// Operand is a matrix in host memory, fp32 (F), bf16 (H) or codes (Q): element (i, j) is at i*RS+j*CS.
type Operand struct {
	F      []float32
	H      []uint16
	Q      *kernels.QuantizedWeight // one matrix, whose elements count row by row
	first  int                      // of Q: element (0, 0)
	RS, CS int
}

// Of is a one-group F32 or BF16 tensor in host memory as an operand.
func Of(t kernels.Tensor) Operand {
	o := Operand{RS: t.Stride, CS: 1}
	if t.DType == kernels.BF16 {
		o.H = t.BF16s()
	} else {
		o.F = t.F32s()
	}
	return o
}

// OfQuantized is a quantized weight of one group in host memory as an operand.
func OfQuantized(w kernels.QuantizedWeight) Operand { return Operand{Q: &w, RS: w.Cols, CS: 1} }

// T is the transpose, the same memory.
func (o Operand) T() Operand {
	o.RS, o.CS = o.CS, o.RS
	return o
}

func (o Operand) at(i, j int) float32 {
	switch {
	case o.H != nil:
		return kernels.FromBF16(o.H[i*o.RS+j*o.CS])
	case o.Q != nil:
		var x [1]float32
		at := o.first + i*o.RS + j*o.CS
		o.Q.DecodeRow(x[:], at/o.Q.Cols, at%o.Q.Cols)
		return x[0]
	}
	return o.F[i*o.RS+j*o.CS]
}

// elements is how many the operand's memory holds.
func (o Operand) elements() int {
	if o.Q != nil {
		return o.Q.Rows*o.Q.Cols - o.first
	}
	return max(len(o.F), len(o.H))
}

// From is the operand without its first i rows and j columns.
func (o Operand) From(i, j int) Operand {
	switch at := i*o.RS + j*o.CS; {
	case o.H != nil:
		o.H = o.H[at:]
	case o.Q != nil:
		o.first += at
	default:
		o.F = o.F[at:]
	}
	return o
}
