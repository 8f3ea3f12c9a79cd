//go:build cuda

package cuda

import (
	"fmt"

	"lockstep/kernels"
)

const elementThreads = 256

// elements is a grid over a matrix: columns across, rows down.
func elements(rows, cols int) [3]int {
	return [3]int{min(blocks(cols, elementThreads), 1024), min(rows, 65535), 1}
}

// Zero clears a tensor of any type. Padding between rows stays.
func (d *Device) Zero(t kernels.Tensor) {
	name := "zero32"
	if t.DType == kernels.BF16 {
		name = "zero16"
	}
	rows, cols, stride := t.Groups*t.Rows, t.Cols, t.Stride
	if t.Contiguous() && rows*cols < 1<<31 {
		rows, cols, stride = 1, rows*cols, rows*cols
	}
	d.launch(name, elements(rows, cols), elementThreads, 0, t, rows, cols, stride)
}

// Copy copies a tensor of the same shape, strides free, and converts F32 to BF16 (to nearest even) or back (exact).
func (d *Device) Copy(dst, src kernels.Tensor) {
	if dst.Groups != src.Groups || dst.Rows != src.Rows || dst.Cols != src.Cols || (dst.DType == kernels.I32) != (src.DType == kernels.I32) {
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
	rows, cols, ds, ss := dst.Groups*dst.Rows, dst.Cols, dst.Stride, src.Stride
	if dst.Contiguous() && src.Contiguous() && rows*cols < 1<<31 {
		rows, cols, ds, ss = 1, rows*cols, rows*cols, rows*cols
	}
	d.launch(name, elements(rows, cols), elementThreads, 0, dst, src, rows, cols, ds, ss)
}

// Add: out = round(a + b), all [T, H]. out may be a or b.
func (d *Device) Add(out, a, b kernels.Tensor) {
	d.launch("add"+suffix(out), elements(out.Rows, out.Cols), elementThreads, 0, out, a, b, out.Rows, out.Cols, out.Stride, a.Stride, b.Stride)
}

// Scale: out = round(x * a), both [T, H]. out may be x.
func (d *Device) Scale(out, x kernels.Tensor, a float32) {
	d.launch("scale"+suffix(out), elements(out.Rows, out.Cols), elementThreads, 0, out, x, a, out.Rows, out.Cols, out.Stride, x.Stride)
}
