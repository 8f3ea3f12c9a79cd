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

// FakeQuantize makes out what codes leave of x, both [G, R, C], strides free, F32 or BF16 each.
func (d *Ops) FakeQuantize(out, x kernels.Tensor, e quant.Encoding) {
	if out.Groups != x.Groups || out.Rows != x.Rows || out.Cols != x.Cols || out.DType == kernels.I32 ||
		x.DType == kernels.I32 {
		panic(fmt.Sprintf("cuda: FakeQuantize: %s to %s", x, out))
	}
	types, rows := driver.Suffix(out)+driver.Suffix(x), out.Groups*out.Rows
	switch e {
	case quant.INT4, quant.MXFP4, quant.MXFP8:
		threads := rows * driver.Blocks(out.Cols, encodeINT4Group) * (encodeINT4Group / 8)
		blocks := driver.Blocks(threads, fakequantizeGroupPieces*driver.ElementThreads)
		launchFakeQuantize(d.Context, "_"+string(e)+types, [3]int{blocks, 1, 1}, driver.ElementThreads, 0, out, x, rows,
			out.Cols, out.Stride, x.Stride)
	case quant.FP8:
		squares := [3]int{driver.Blocks(out.Cols, encodeFP8Block), driver.Blocks(out.Rows, encodeFP8Block), out.Groups}
		launchFakeQuantize(d.Context, "_fp8"+types, squares, encodeSquareThreads, 0, out, x, out.Rows, out.Cols,
			out.Stride, x.Stride)
	default:
		panic(fmt.Sprintf("cuda: FakeQuantize to %q", e))
	}
}

// FakeQuantizeHeads makes of x [R, heads*width] what MXFP8 leaves of it, in blocks of each head.
func (d *Ops) FakeQuantizeHeads(x kernels.Tensor, width int) {
	if width <= 0 || x.Cols%width != 0 {
		panic(fmt.Sprintf("cuda: FakeQuantizeHeads: %s in heads of %d", x, width))
	}
	if width%encodeINT4Group == 0 {
		width = x.Cols // blocks of the row are those of its heads
	}
	for at := 0; at < x.Cols; at += width {
		head := x.ColRange(at, at+width)
		d.FakeQuantize(head, head, quant.MXFP8)
	}
}

// FakeQuantizeRows makes out what MXFP8 leaves of x, both [R, C], in blocks of rows.
func (d *Ops) FakeQuantizeRows(out, x kernels.Tensor, g *kernels.Groups) {
	if out.Groups != 1 || x.Groups != 1 || out.Rows != x.Rows || out.Cols != x.Cols || out.DType != x.DType ||
		g.Interleaved {
		panic(fmt.Sprintf("cuda: FakeQuantizeRows: %s to %s", x, out))
	}
	cells := g.Count * g.Segments
	launchFakeQuantizeRows(d.Context, driver.Suffix(x), [3]int{x.Rows/encodeINT4Group + cells,
		driver.Blocks(x.Cols, fakequantizeStripThreads*fakequantizeStrip), 1}, fakequantizeStripThreads, 0, out, x,
		g.Offsets, cells, x.Cols, out.Stride, x.Stride)
}
