package gemm

import "lockstep/kernels"

// Operand is a matrix in host memory, fp32 (F) or bf16 (H): element (i, j) is at i*RS+j*CS.
type Operand struct {
	F      []float32
	H      []uint16
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

// T is the transpose, the same memory.
func (o Operand) T() Operand {
	o.RS, o.CS = o.CS, o.RS
	return o
}

func (o Operand) at(i, j int) float32 {
	if o.H != nil {
		return kernels.FromBF16(o.H[i*o.RS+j*o.CS])
	}
	return o.F[i*o.RS+j*o.CS]
}

// From is the operand without its first i rows and j columns.
func (o Operand) From(i, j int) Operand {
	if o.H != nil {
		o.H = o.H[i*o.RS+j*o.CS:]
	} else {
		o.F = o.F[i*o.RS+j*o.CS:]
	}
	return o
}
