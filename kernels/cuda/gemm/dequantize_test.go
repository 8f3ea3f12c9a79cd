//go:build cuda

package gemm

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/quant"
)

// everyScale is all scales of a type that are finite numbers, or of fp32 the edges and some others.
func everyScale(s quant.Scale) (raw []byte) {
	switch s {
	case quant.ScaleE8M0:
		for e := range 255 {
			raw = append(raw, byte(e))
		}
	case quant.ScaleBF16:
		for b := range 1 << 16 {
			if b>>7&0xff != 0xff {
				raw = binary.LittleEndian.AppendUint16(raw, uint16(b))
			}
		}
	default:
		for e := range 255 {
			for _, m := range []uint32{0, 1, 0x400000, 0x7fffff, cudatest.Rand.Uint32() >> 9} {
				for sign := range uint32(2) {
					raw = binary.LittleEndian.AppendUint32(raw, sign<<31|uint32(e)<<23|m)
				}
			}
		}
	}
	return raw
}

// everyCode is a row of each code that is a number, shuffled.
func everyCode(c quant.Code) (row []byte) {
	if c != quant.CodeE4M3 {
		for _, i := range cudatest.Rand.Perm(16) {
			row = append(row, byte(i|(15-i)<<4))
		}
		return row
	}
	for _, i := range cudatest.Rand.Perm(256) {
		if i&0x7f == 0x7f {
			i ^= 1
		}
		row = append(row, byte(i))
	}
	return row
}

// exhaustive is a weight of every code with every scale, of so many columns to a scale: each row has another scale.
func exhaustive(f quant.Format, d kernels.DType) cudatest.Quantized {
	codes, scales := everyCode(f.Code), everyScale(f.Scale)
	rows := len(scales) / kernels.ScaleType(f.Scale).Size()
	q := cudatest.NewQuantized(f, d, 1, rows, len(codes)*8/f.Code.Bits())
	for range rows {
		q.Codes.Raw = append(q.Codes.Raw, codes...)
	}
	for range q.Scales.Rows {
		q.Scales.Raw = append(q.Scales.Raw, scales...)
	}
	return q
}

func formats(wide ...int) (all []quant.Format) {
	for c := quant.CodeINT4; c <= quant.CodeE4M3; c++ {
		for s := quant.ScaleE8M0; s <= quant.ScaleF32; s++ {
			for _, w := range wide {
				all = append(all, quant.Format{Code: c, Scale: s, Wide: w})
			}
		}
	}
	for _, w := range wide {
		all = append(all, quant.FormatNF4(w))
	}
	return all
}

func checkDequantize(t *testing.T, q cudatest.Quantized) {
	t.Helper()
	w := q.Shape
	out := cudatest.Grouped(w.DType, w.Groups, w.Rows, w.Cols, w.Cols, 0)
	cudatest.Both(t, fmt.Sprint("Dequantize ", w), []cudatest.Operand{out, q.Codes, q.Scales}, func(d kernels.Device,
		x []kernels.Tensor) {
		d.(kernels.QuantizedProducts).Dequantize(x[0], *q.On(x[1], x[2]))
	})
}

// Every code with every scale: subnormal numbers, scales of 2^-127, products that are infinite.
func TestDequantizeEveryCode(t *testing.T) {
	for _, f := range formats(32) {
		for _, d := range cudatest.DTypes {
			checkDequantize(t, exhaustive(f, d))
		}
	}
}

// Shapes whose rows end inside of a thread's columns or inside of a byte, blocks of any width, groups.
func TestDequantize(t *testing.T) {
	for _, f := range formats(1, 5, 16, 32, 128, math.MaxInt32) {
		for _, s := range [][3]int{{1, 1, 1}, {3, 37, 100}, {2, 64, 288}, {1, 5, 331}} {
			for _, d := range cudatest.DTypes {
				checkDequantize(t, cudatest.RandomQuantized(f, d, s[0], s[1], s[2]))
			}
		}
	}
}
