package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// Zero clears a tensor of any type. Padding between rows stays.
func (d *Device) Zero(t kernels.Tensor) {
	d.pool.each(t.Groups*t.Rows, rowWork/max(t.Cols, 1), func(_, from, to int) {
		for r := from; r < to; r++ {
			at := r * t.Stride
			switch t.DType {
			case kernels.F32:
				clear(t.F32s()[at : at+t.Cols])
			case kernels.BF16:
				clear(t.BF16s()[at : at+t.Cols])
			case kernels.I32:
				clear(t.I32s()[at : at+t.Cols])
			}
		}
	})
}

// Copy copies a tensor of the same shape, strides free, and converts F32 to BF16 (to nearest even) or back (exact).
func (d *Device) Copy(dst, src kernels.Tensor) {
	if dst.Groups != src.Groups || dst.Rows != src.Rows || dst.Cols != src.Cols || (dst.DType == kernels.I32) !=
		(src.DType == kernels.I32) {
		panic(fmt.Sprintf("cpu: copy %s to %s", src, dst))
	}
	d.pool.each(dst.Groups*dst.Rows, rowWork/max(dst.Cols, 1), func(_, from, to int) {
		for r := from; r < to; r++ {
			d.copyPart(dst, src, r*dst.Stride, r*src.Stride, dst.Cols)
		}
	})
}

// copyPart copies n elements from element `from` of src to element `at` of dst.
func (d *Device) copyPart(dst, src kernels.Tensor, at, from, n int) {
	switch {
	case dst.DType == kernels.I32:
		copy(dst.I32s()[at:at+n], src.I32s()[from:from+n])
	case dst.DType == kernels.F32 && src.DType == kernels.F32:
		copy(dst.F32s()[at:at+n], src.F32s()[from:from+n])
	case dst.DType == kernels.BF16 && src.DType == kernels.BF16:
		copy(dst.BF16s()[at:at+n], src.BF16s()[from:from+n])
	case dst.DType == kernels.F32:
		d.vec.Widen(dst.F32s()[at:at+n], src.BF16s()[from:from+n])
	default:
		d.vec.Narrow(dst.BF16s()[at:at+n], src.F32s()[from:from+n])
	}
}
