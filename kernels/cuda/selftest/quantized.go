//go:build cuda

package selftest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"lockstep/kernels"
	"lockstep/kernels/cuda/gemm"
	"lockstep/quant"
)

// CheckQuantized runs products with a weight of this format by each kernel that may compute them, once.
func (d *Checks) CheckQuantized(w kernels.QuantizedWeight) error {
	if w.DType != kernels.BF16 {
		return fmt.Errorf("multiplies bf16: it cannot take %s", w)
	}
	f := w.Format
	f.Wide = min(f.Wide, quantizedCols) // more is a row of the check
	defer func() { d.c.Path = "" }()
	for _, path := range gemm.QuantizedPaths {
		d.c.Path = path
		err := d.checkOnce(fmt.Sprintf("products with %s (%s)", f, path), func(dev kernels.Device, mem *kernels.Arena,
			r *rand.Rand) kernels.Tensor {
			return runQuantized(newLayerCheck(dev, mem, r), f)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckCodes runs products of rows in codes by each kernel that may compute them, once.
func (d *Checks) CheckCodes(w kernels.QuantizedWeight) error {
	ops := gemm.New(d.c)
	if err := ops.CheckFP8(w); err != nil {
		return err
	}
	defer func() { d.c.Path = "" }()
	for _, path := range gemm.FP8Paths {
		d.c.Path = path
		if err := d.checkOnce(fmt.Sprintf("products of FP8 codes (%s)", path), runCodes); err != nil {
			return fmt.Errorf("a %s %w", d.c.CardName(), err)
		}
	}
	return nil
}

// runCodes multiplies two groups of rows, one of them of few, by a weight in codes with an adapter. Scales of the
// weight's rows are all different, or those of 128 rows the same.
func runCodes(dev kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
	const groups = 2
	t, e := newLayerCheck(dev, mem, r), quant.FP8x128
	offsets := t.mem.New(kernels.I32, 1, groups+1)
	t.d.Write(offsets, []byte{0, 0, 0, 0, 7, 0, 0, 0, layerRows, 0, 0, 0})
	g := &kernels.Groups{Offsets: offsets, Count: groups, Segments: 1}
	w := t.quantized(e.Format(), groups, quantizedRows, quantizedCols)
	b := t.random(kernels.BF16, groups*quantizedRows, quantizedRank)
	b.Groups, b.Rows = groups, quantizedRows
	for range 2 {
		x := kernels.NewQuantizedWeight(e.Format(), kernels.BF16, 1, layerRows, quantizedCols, t.mem.NewGrouped)
		t.d.(kernels.QuantizedProducts).QuantizeRows(x, t.rows(quantizedCols))
		t.d.MatMul(t.activation(quantizedRows), g, kernels.Term{X: x.Shape(), XQ: &x, Q: &w},
			kernels.Term{X: t.rows(quantizedRank), W: b})
		t.d.Write(w.Scales, bytes.Repeat([]byte{1, 2, 3, 0x3e}, w.Scales.Len()))
	}
	return t.all()
}

const (
	quantizedRows, quantizedCols = 96, 256 // of a weight of the check
	quantizedRank                = 16      // of its adapter
)

// runQuantized multiplies two groups of rows, one of them of few, by weights in codes, forward with an adapter and
// back.
func runQuantized(t layerCheck, f quant.Format) kernels.Tensor {
	const groups = 2
	w := t.quantized(f, groups, quantizedRows, quantizedCols)
	numbers := t.result(kernels.BF16, groups*quantizedRows, quantizedCols)
	numbers.Groups, numbers.Rows = groups, quantizedRows
	t.d.(kernels.QuantizedProducts).Dequantize(numbers, w)

	offsets := t.mem.New(kernels.I32, 1, groups+1)
	t.d.Write(offsets, []byte{0, 0, 0, 0, 7, 0, 0, 0, layerRows, 0, 0, 0})
	g := &kernels.Groups{Offsets: offsets, Count: groups, Segments: 1}
	adapter := func(rows int) kernels.Term {
		b := t.random(kernels.BF16, groups*rows, quantizedRank)
		b.Groups, b.Rows = groups, rows
		return kernels.Term{X: t.rows(quantizedRank), W: b}
	}
	t.d.MatMul(t.activation(quantizedRows), g, kernels.Term{X: t.rows(quantizedCols), Q: &w}, adapter(quantizedRows))
	a := t.random(kernels.BF16, groups*quantizedRank, quantizedCols)
	a.Groups, a.Rows = groups, quantizedRank
	t.d.MatMulT(t.activation(quantizedCols), g, kernels.Term{X: t.rows(quantizedRows), Q: &w},
		kernels.Term{X: t.rows(quantizedRank), W: a})
	return t.all()
}

// quantized is a weight of random codes that are numbers, and scales of several sizes.
func (t *layerCheck) quantized(f quant.Format, groups, rows, cols int) kernels.QuantizedWeight {
	w := kernels.NewQuantizedWeight(f, kernels.BF16, groups, rows, cols, t.mem.NewGrouped)
	codes, scales := make([]byte, w.Codes.Len()), []byte(nil)
	for i := range codes {
		if codes[i] = byte(t.r.Uint32()); f.Code == quant.CodeE4M3 && codes[i]&0x7f == 0x7f {
			codes[i]--
		}
	}
	for range w.Scales.Len() {
		s := float32(math.Ldexp(1+t.r.Float64(), t.r.IntN(12)-12))
		switch f.Scale {
		case quant.ScaleE8M0:
			scales = append(scales, byte(115+t.r.IntN(12)))
		case quant.ScaleBF16:
			scales = binary.LittleEndian.AppendUint16(scales, kernels.RoundBF16(s))
		default:
			scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(s))
		}
	}
	t.d.Write(w.Codes, codes)
	t.d.Write(w.Scales, scales)
	return w
}
