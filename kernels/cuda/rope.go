//go:build cuda

package cuda

import (
	"fmt"

	"lockstep/kernels"
)

// turn is Turn of rope.cu in the bytes of a parameter.
func turn(rope kernels.Rope, w kernels.Tensor) []byte {
	pairs := rope.Cos.Cols
	if rope.First < 0 || rope.First+2*pairs > rope.HeadDim || rope.Interleaved && !w.IsNil() {
		panic(fmt.Sprintf("cuda: heads with norm %s and %+v", w, rope))
	}
	var buf []byte
	for _, v := range []any{rope.HeadDim, pairs, rope.First, rope.Interleaved} {
		buf = appendParam(buf, v)
	}
	return buf
}

// HeadNormRope normalises each head of x [T, heads*D] with w, unless w is nil, and turns pairs of its columns.
func (d *Device) HeadNormRope(out, rstd, x, w, positions kernels.Tensor, rope kernels.Rope, norm kernels.Norm) {
	heads := x.Cols / rope.HeadDim
	d.launch("head_norm_rope"+suffix(x), warps(x.Rows*heads), warpThreads, 0, turn(rope, w), out, rstd, x, w, positions, rope.Cos, rope.Sin, x.Rows, heads,
		out.Stride, x.Stride, norm.Eps, norm.PlusOne)
}

// HeadNormRopeBackward writes dx, which may be dout, and adds to dw F32 [1, D], which may be nil.
func (d *Device) HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions kernels.Tensor, rope kernels.Rope, norm kernels.Norm, packs []int32) {
	heads, k := x.Cols/rope.HeadDim, turn(rope, w)
	if !dw.IsNil() { // before dx, which may be dout
		rows := kernels.RowBlocks(packs)
		n := len(rows) - 1
		sums := d.workspace(4 * n * rope.HeadDim)
		d.launch("head_norm_blocks"+suffix(x), [3]int{blocks(rope.HeadDim-rope.Cos.Cols, 32), n, 1}, 32, 0, k, sums, dout, x, rstd, positions, rope.Cos, rope.Sin,
			stage(d, rows), heads, dout.Stride, x.Stride)
		d.launch("add_blocks", [3]int{blocks(rope.HeadDim, 32), 1, 1}, 32, 0, dw, sums, n, rope.HeadDim)
	}
	d.launch("head_norm_rope_backward"+suffix(x), warps(x.Rows*heads), warpThreads, 0, k, dx, dout, x, rstd, w, positions, rope.Cos, rope.Sin, x.Rows, heads,
		dx.Stride, dout.Stride, x.Stride, norm.PlusOne)
}
