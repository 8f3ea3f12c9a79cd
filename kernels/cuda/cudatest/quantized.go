//go:build cuda

package cudatest

import (
	"encoding/binary"
	"math"

	"lockstep/kernels"
	"lockstep/quant"
)

// Quantized is a weight in codes whose codes and scales are two operands.
type Quantized struct {
	Shape         kernels.QuantizedWeight // without memory
	Codes, Scales Operand
}

// RandomQuantized is a weight of random codes that are numbers, and scales of several sizes and both signs.
func RandomQuantized(f quant.Format, d kernels.DType, groups, rows, cols int) Quantized {
	q := NewQuantized(f, d, groups, rows, cols)
	for range groups * rows * q.Codes.Cols {
		c := byte(Rand.Uint32())
		if f.Code == quant.CodeE4M3 && c&0x7f == 0x7f {
			c--
		}
		q.Codes.Raw = append(q.Codes.Raw, c)
	}
	for range groups * q.Scales.Rows * rows {
		s := float32(math.Ldexp(1+Rand.Float64(), Rand.IntN(12)-12)) * float32(1-2*Rand.IntN(2))
		switch f.Scale {
		case quant.ScaleE8M0:
			q.Scales.Raw = append(q.Scales.Raw, byte(115+Rand.IntN(12)))
		case quant.ScaleBF16:
			q.Scales.Raw = binary.LittleEndian.AppendUint16(q.Scales.Raw, kernels.RoundBF16(s))
		default:
			q.Scales.Raw = binary.LittleEndian.AppendUint32(q.Scales.Raw, math.Float32bits(s))
		}
	}
	return q
}

// NewQuantized is a weight whose operands have no bytes yet.
func NewQuantized(f quant.Format, d kernels.DType, groups, rows, cols int) (q Quantized) {
	q.Shape = kernels.NewQuantizedWeight(f, d, groups, rows, cols, func(d kernels.DType, groups, rows,
		cols int) kernels.Tensor {
		return kernels.Tensor{DType: d, Groups: groups, Rows: rows, Cols: cols, Stride: cols}
	})
	of := func(t kernels.Tensor) Operand {
		return Operand{DType: t.DType, Groups: t.Groups, Rows: t.Rows, Cols: t.Cols, Stride: t.Stride}
	}
	q.Codes, q.Scales = of(q.Shape.Codes), of(q.Shape.Scales)
	return q
}

// On is the weight on a device, its codes and scales there.
func (q Quantized) On(codes, scales kernels.Tensor) *kernels.QuantizedWeight {
	w := q.Shape
	w.Codes, w.Scales = codes, scales
	return &w
}
