//go:build cuda

package rows

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/quant"
)

// CanRead reports whether another device is the same card: one memory, and one stream that orders the operations of
// both.
func (d *Ops) CanRead(other kernels.Device) bool {
	o, ok := other.(interface{ Handle() cu.CUContext })
	return ok && o.Handle() == d.Handle()
}

// Round makes dst what a format leaves of src, both [G, R, C], strides free, F32 or BF16 each.
func (d *Ops) Round(dst, src kernels.Tensor, f quant.Encoding) {
	if dst.Groups != src.Groups || dst.Rows != src.Rows || dst.Cols != src.Cols || dst.DType == kernels.I32 ||
		src.DType == kernels.I32 {
		panic(fmt.Sprintf("cuda: round %s to %s", src, dst))
	}
	types, rows := driver.Suffix(dst)+driver.Suffix(src), dst.Groups*dst.Rows
	switch f {
	case quant.INT4:
		threads := rows * driver.Blocks(dst.Cols, encodeINT4Group) * (encodeINT4Group / 8)
		launchRound(d.Context, "_int4"+types, [3]int{driver.Blocks(threads, roundINT4Pieces*driver.ElementThreads), 1,
			1}, driver.ElementThreads, 0, dst, src, rows, dst.Cols, dst.Stride, src.Stride)
	case quant.FP8:
		squares := [3]int{driver.Blocks(dst.Cols, encodeFP8Block), driver.Blocks(dst.Rows, encodeFP8Block), dst.Groups}
		launchRound(d.Context, "_fp8"+types, squares, encodeSquareThreads, 0, dst, src, dst.Rows, dst.Cols, dst.Stride,
			src.Stride)
	default:
		panic(fmt.Sprintf("cuda: round to %q", f))
	}
}
