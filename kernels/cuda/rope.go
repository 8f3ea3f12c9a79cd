//go:build cuda

package cuda

import "lockstep/kernels"

// HeadNormRope normalises each head of x [T, heads*D] with w, unless w is nil, and rotates it.
func (d *Device) HeadNormRope(out, rstd, x, w, positions kernels.Tensor, rope kernels.Rope, eps float32) {
	half := rope.Cos.Cols
	heads := x.Cols / (2 * half)
	d.launch("head_norm_rope"+suffix(x), warps(x.Rows*heads), warpThreads, 0, out, rstd, x, w, positions, rope.Cos, rope.Sin, x.Rows, heads, half,
		out.Stride, x.Stride, eps)
}

// HeadNormRopeBackward writes dx, which may be dout, and adds to dw F32 [1, D], which may be nil.
func (d *Device) HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions kernels.Tensor, rope kernels.Rope, packs []int32) {
	half := rope.Cos.Cols
	heads := x.Cols / (2 * half)
	if !dw.IsNil() { // before dx, which may be dout
		rows := kernels.RowBlocks(packs)
		n := len(rows) - 1
		sums := d.workspace(4 * n * 2 * half)
		d.launch("head_norm_blocks"+suffix(x), [3]int{blocks(half, 32), n, 1}, 32, 0, sums, dout, x, rstd, positions, rope.Cos, rope.Sin, stage(d, rows), heads, half,
			dout.Stride, x.Stride)
		d.launch("add_blocks", [3]int{blocks(2*half, 32), 1, 1}, 32, 0, dw, sums, n, 2*half)
	}
	d.launch("head_norm_rope_backward"+suffix(x), warps(x.Rows*heads), warpThreads, 0, dx, dout, x, rstd, w, positions, rope.Cos, rope.Sin, x.Rows, heads,
		half, dx.Stride, dout.Stride, x.Stride)
}
