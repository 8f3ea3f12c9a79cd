//go:build cuda

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/quant"
)

const (
	int4Pieces    = 4   // of eight columns, a thread
	squareThreads = 512 // carry out a square of FP8
)

// Sees reports whether another device is the same card: one memory, and one stream that orders the operations of both.
func (d *Device) Sees(other kernels.Device) bool {
	o, ok := other.(interface{ card() cu.CUContext })
	return ok && o.card() == d.context
}

// card is what all devices of one GPU share in this process.
func (d *Device) card() cu.CUContext { return d.context }

// Round makes dst what a format leaves of src, both [G, R, C], strides free, F32 or BF16 each.
func (d *Device) Round(dst, src kernels.Tensor, f quant.Format) {
	if dst.Groups != src.Groups || dst.Rows != src.Rows || dst.Cols != src.Cols || dst.DType == kernels.I32 ||
		src.DType == kernels.I32 {
		panic(fmt.Sprintf("cuda: round %s to %s", src, dst))
	}
	types, rows := suffix(dst)+suffix(src), dst.Groups*dst.Rows
	switch f {
	case quant.INT4:
		threads := rows * blocks(dst.Cols, quant.INT4Group) * (quant.INT4Group / 8)
		d.launch("round_int4"+types, [3]int{blocks(threads, int4Pieces*elementThreads), 1, 1}, elementThreads, 0, dst,
			src, rows, dst.Cols, dst.Stride, src.Stride)
	case quant.FP8:
		squares := [3]int{blocks(dst.Cols, quant.FP8Block), blocks(dst.Rows, quant.FP8Block), dst.Groups}
		d.launch("round_fp8"+types, squares, squareThreads, 0, dst, src, dst.Rows, dst.Cols, dst.Stride, src.Stride)
	default:
		panic(fmt.Sprintf("cuda: round to %q", f))
	}
}
