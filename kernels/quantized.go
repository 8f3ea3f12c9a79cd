package kernels

import (
	"fmt"

	"lockstep/quant"
)

// QuantizedWeight is a weight in codes, or rows of activations: Groups matrices [Rows, Cols] of the numbers
// round(code*scale), where the product is rounded to fp32, and round(.) is to DType. Every operation gives the bits
// that it gives on those numbers, but products of [Term].XQ.
type QuantizedWeight struct {
	Format             quant.Format
	DType              DType // storage type of the numbers: F32 or BF16
	Groups, Rows, Cols int
	Codes              Tensor // U8 [Groups, Rows, Format.RowBytes(Cols)]
	// Scales are [Groups, Format.Blocks(Cols), Rows], those of a block of columns for all rows side by side: U8 where
	// they are powers of two (E8M0), BF16 or F32.
	Scales Tensor
}

// ScaleType is the storage type of a format's scales.
func ScaleType(s quant.Scale) DType { return [...]DType{U8, BF16, F32}[s] }

// NewQuantizedWeight is a weight without memory, or with memory from new, which is [Arena.NewGrouped] of some arena.
func NewQuantizedWeight(f quant.Format, d DType, groups, rows, cols int,
	memory func(d DType, groups, rows, cols int) Tensor) QuantizedWeight {
	return QuantizedWeight{Format: f, DType: d, Groups: groups, Rows: rows, Cols: cols,
		Codes:  memory(U8, groups, rows, f.RowBytes(cols)),
		Scales: memory(ScaleType(f.Scale), groups, f.Blocks(cols), rows)}
}

// Shape is the weight's shape and storage type, without memory.
func (w QuantizedWeight) Shape() Tensor {
	return Tensor{DType: w.DType, Groups: w.Groups, Rows: w.Rows, Cols: w.Cols, Stride: w.Cols}
}

// Bytes of codes and scales.
func (w QuantizedWeight) Bytes() int { return w.Codes.Bytes() + w.Scales.Bytes() }

// Matrices are some of them, from one on.
func (w QuantizedWeight) Matrices(first, groups int) QuantizedWeight {
	of := func(t Tensor) Tensor {
		rows := t.Rows
		return t.Reshape(t.Groups*rows, t.Cols).Stacked(first*rows, groups, rows)
	}
	w.Groups, w.Codes, w.Scales = groups, of(w.Codes), of(w.Scales)
	return w
}

// FillScales sets every scale, in host memory.
func (w QuantizedWeight) FillScales(s float32) {
	for i := range w.Scales.Len() {
		w.setScale(i, s)
	}
}

// Group is matrix g.
func (w QuantizedWeight) Group(g int) QuantizedWeight {
	w.Groups, w.Codes, w.Scales = 1, w.Codes.Group(g), w.Scales.Group(g)
	return w
}

// DecodeRow writes numbers of a row, counted through all groups, from a column on, as many as dst holds. Codes and
// scales are in host memory.
func (w QuantizedWeight) DecodeRow(dst []float32, row, col int) {
	group, line := row/w.Rows, w.Codes.Raw()[row*w.Codes.Cols:][:w.Codes.Cols]
	var scale [1]float32
	for len(dst) > 0 {
		block := col / w.Format.Wide
		n := min(len(dst), (block+1)*w.Format.Wide-col)
		w.DecodeScales(scale[:], (group*w.Scales.Rows+block)*w.Rows+row%w.Rows)
		w.Format.Decode(dst[:n], line, col, scale[0])
		if w.DType == BF16 {
			for i, x := range dst[:n] {
				dst[i] = FromBF16(RoundBF16(x))
			}
		}
		dst, col = dst[n:], col+n
	}
}

// EncodeRows puts numbers x [n, Cols] into rows from one on, counted through all groups: whole blocks of the encoding,
// of one group. Codes and scales are in host memory.
func (w QuantizedWeight) EncodeRows(e quant.Encoding, row int, x []float32) {
	n, blocks := len(x)/w.Cols, w.Scales.Rows
	scales := make([]float32, (n+e.High()-1)/e.High()*blocks)
	e.Encode(w.Codes.Raw()[row*w.Codes.Cols:][:n*w.Codes.Cols], scales, x, n, w.Cols)
	group := row / w.Rows * blocks * w.Rows
	for r := range n {
		for b, s := range scales[r/e.High()*blocks:][:blocks] {
			w.setScale(group+b*w.Rows+(row+r)%w.Rows, s)
		}
	}
}

// setScale writes element i of the scales, in host memory.
func (w QuantizedWeight) setScale(i int, s float32) {
	switch w.Format.Scale {
	case quant.ScaleE8M0:
		w.Scales.Raw()[i] = quant.CodeOfScale(s)
	case quant.ScaleBF16:
		w.Scales.BF16s()[i] = RoundBF16(s)
	default:
		w.Scales.F32s()[i] = s
	}
}

// DecodeScales writes the numbers of scales from element i on, as many as dst holds. They are in host memory.
func (w *QuantizedWeight) DecodeScales(dst []float32, i int) {
	switch w.Format.Scale {
	case quant.ScaleE8M0:
		for j, e := range w.Scales.Raw()[i:][:len(dst)] {
			dst[j] = quant.PowerOfTwo(e)
		}
	case quant.ScaleBF16:
		for j, s := range w.Scales.BF16s()[i:][:len(dst)] {
			dst[j] = FromBF16(s)
		}
	default:
		copy(dst, w.Scales.F32s()[i:][:len(dst)])
	}
}

func (w QuantizedWeight) String() string { return fmt.Sprintf("%s in %s", w.Shape(), w.Format) }

// QuantizedProducts is a Device whose products take weights in codes.
type QuantizedProducts interface {
	// CheckQuantized returns nil if MatMul and MatMulT take a weight of this format and shape and have passed their
	// self-test, otherwise the reason. The weight need not have memory.
	CheckQuantized(w QuantizedWeight) error
	// Dequantize: out [Groups, Rows, Cols] = round(code*scale), contiguous, of w.DType.
	Dequantize(out Tensor, w QuantizedWeight)
	// Quantize puts numbers x, F32 [Groups, Rows, Cols] and contiguous, into codes and scales. Blocks of rows begin
	// anew at the rows of each matrix that starts lists, ascending from 0.
	Quantize(w QuantizedWeight, x Tensor, e quant.Encoding, starts []int)
	// CheckCodes returns nil if MatMul takes rows in codes of FP8x128 with a weight of this format and shape, as [Term]
	// says, and has passed its self-test, otherwise the reason. The weight need not have memory.
	CheckCodes(w QuantizedWeight) error
	// QuantizeRows puts rows x [Rows, Cols], F32 or BF16, into codes by FP8x128: w has one group.
	QuantizeRows(w QuantizedWeight, x Tensor)
	// DrawCodes fills codes with those of [DrawnCodes], of matrices of a key from `first` on, and makes all scales one.
	// The weight may be memory of [HostMemory], as in Draw.
	DrawCodes(w QuantizedWeight, key uint64, first int, scale float32)
	// FakeQuantize: out = round(y), where y is [quant.Encoding.Round] of x in fp32, for each of the Groups matrices:
	// what codes leave of numbers. Each of out and x is F32 or BF16, and out may be x.
	FakeQuantize(out, x Tensor, e quant.Encoding)
	// FakeQuantizeRows is FakeQuantize by MXFP8 whose blocks are 32 rows of a column, from the first row of each
	// segment of each group on: none crosses a segment. out and x are [R, n] of one type, and out may be x; groups are
	// not interleaved.
	FakeQuantizeRows(out, x Tensor, g *Groups)
	// FakeQuantizeHeads is FakeQuantize by MXFP8 of x in its place, a row of which is heads of so many columns: blocks
	// begin at the first column of each.
	FakeQuantizeHeads(x Tensor, width int)
}
