//go:build cuda

package cuda

import (
	"fmt"

	"lockstep/kernels"
)

const elementThreads = 256

// pieces is a grid of a thread for eight columns of each row.
func pieces(rows, cols int) [3]int { return [3]int{blocks(rows*blocks(cols, 8), elementThreads), 1, 1} }

// flat gives the shape of matrices that are contiguous as one row of as many columns as an int32 holds.
func flat(ts ...kernels.Tensor) (rows, cols int) {
	rows, cols = ts[0].Groups*ts[0].Rows, ts[0].Cols
	contiguous := rows*cols < 1<<31
	for _, t := range ts {
		contiguous = contiguous && t.Contiguous()
	}
	if contiguous {
		rows, cols = 1, rows*cols
	}
	return rows, cols
}

// Zero clears a tensor of any type. Padding between rows stays.
func (d *Device) Zero(t kernels.Tensor) {
	name := "zero32"
	if t.DType == kernels.BF16 {
		name = "zero16"
	}
	rows, cols := flat(t)
	d.launch(name, pieces(rows, cols), elementThreads, 0, t, rows, cols, t.Stride)
}

// Copy copies a tensor of the same shape, strides free, and converts F32 to BF16 (to nearest even) or back (exact).
func (d *Device) Copy(dst, src kernels.Tensor) {
	if dst.Groups != src.Groups || dst.Rows != src.Rows || dst.Cols != src.Cols || (dst.DType == kernels.I32) !=
		(src.DType == kernels.I32) {
		panic(fmt.Sprintf("cuda: copy %s to %s", src, dst))
	}
	name := "copy32"
	switch {
	case dst.DType == kernels.BF16 && src.DType == kernels.BF16:
		name = "copy16"
	case dst.DType == kernels.BF16:
		name = "copy_bf16_f32"
	case src.DType == kernels.BF16:
		name = "copy_f32_bf16"
	}
	rows, cols := flat(dst, src)
	d.launch(name, pieces(rows, cols), elementThreads, 0, dst, src, rows, cols, dst.Stride, src.Stride)
}

// Add: out = round(a + b), all [T, H]. out may be a or b.
func (d *Device) Add(out, a, b kernels.Tensor) {
	rows, cols := flat(out, a, b)
	d.launch("add"+suffix(out), pieces(rows, cols), elementThreads, 0, out, a, b, rows, cols, out.Stride, a.Stride,
		b.Stride)
}

// Scale: out = round(x * a), both [T, H]. out may be x.
func (d *Device) Scale(out, x kernels.Tensor, a float32) {
	rows, cols := flat(out, x)
	d.launch("scale"+suffix(out), pieces(rows, cols), elementThreads, 0, out, x, a, rows, cols, out.Stride, x.Stride)
}
