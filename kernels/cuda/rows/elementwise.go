//go:build cuda

package rows

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Zero clears a tensor of any type. Padding between rows stays.
func (d *Ops) Zero(t kernels.Tensor) {
	name := "zero32"
	if t.DType == kernels.BF16 {
		name = "zero16"
	}
	rows, cols := driver.Flat(t)
	d.Launch(name, driver.Pieces(rows, cols), driver.ElementThreads, 0, t, rows, cols, t.Stride)
}

// Copy copies a tensor of the same shape, strides free, and converts F32 to BF16 (to nearest even) or back (exact).
func (d *Ops) Copy(dst, src kernels.Tensor) {
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
	rows, cols := driver.Flat(dst, src)
	d.Launch(name, driver.Pieces(rows, cols), driver.ElementThreads, 0, dst, src, rows, cols, dst.Stride, src.Stride)
}

// Add: out = round(a + b), all [T, H]. out may be a or b.
func (d *Ops) Add(out, a, b kernels.Tensor) {
	rows, cols := driver.Flat(out, a, b)
	d.Launch("add"+driver.Suffix(out), driver.Pieces(rows, cols), driver.ElementThreads, 0, out, a, b, rows, cols,
		out.Stride, a.Stride,
		b.Stride)
}

// Scale: out = round(x * a), both [T, H]. out may be x.
func (d *Ops) Scale(out, x kernels.Tensor, a float32) {
	rows, cols := driver.Flat(out, x)
	d.Launch("scale"+driver.Suffix(out), driver.Pieces(rows, cols), driver.ElementThreads, 0, out, x, a, rows, cols,
		out.Stride, x.Stride)
}
