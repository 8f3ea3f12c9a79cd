//go:build cuda

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

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

// turnKind is Kind of rope.cu.
func turnKind(rope kernels.Rope) string {
	switch {
	case !rope.Interleaved && rope.First%8 == 0 && rope.Cos.Cols%8 == 0:
		return "halves"
	case rope.Interleaved && rope.First%2 == 0:
		return "neighbours"
	}
	return "others"
}

// headThreads is how many threads share a head, eight columns each.
func headThreads(dim int) int {
	for _, threads := range []int{8, 16, 32} {
		if dim <= 8*threads {
			return threads
		}
	}
	panic(kernels.Fault{Err: fmt.Errorf("rotary positions on the GPU are written for heads of up to 256 columns, not %d", dim)})
}

// HeadNormRope normalises each head of x [T, heads*D] with w, unless w is nil, and turns pairs of its columns.
func (d *Device) HeadNormRope(out, rstd, x, w, positions kernels.Tensor, rope kernels.Rope, norm kernels.Norm) {
	heads, threads := x.Cols/rope.HeadDim, headThreads(rope.HeadDim)
	block := min(128, blocks(heads*threads, 32)*32)
	d.launch(fmt.Sprintf("head_norm_rope_%s_%d%s", turnKind(rope), threads, suffix(x)), [3]int{x.Rows, 1, 1}, block, 0,
		turn(rope, w), out, rstd, x, w, positions, rope.Cos, rope.Sin, heads, out.Stride, x.Stride, norm.Eps, norm.PlusOne)
}

const ropeThreads = 512 // kThreads of rope.cu

// HeadNormRopeBackward writes dx, which may be dout, and adds to dw F32 [1, D], which may be nil.
func (d *Device) HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions kernels.Tensor, rope kernels.Rope, norm kernels.Norm, packs []int32) {
	heads, threads, rows := x.Cols/rope.HeadDim, headThreads(rope.HeadDim), kernels.RowBlocks(packs)
	d.sumRows(dw, len(rows)-1, func(n int, sums cu.DevicePtr) {
		d.launch(fmt.Sprintf("head_norm_rope_backward_%s_%d%s", turnKind(rope), threads, suffix(x)), [3]int{n, 1, 1}, ropeThreads, 2*ropeThreads/threads*rope.HeadDim*4,
			turn(rope, w), dx, sums, dout, x, rstd, w, positions, rope.Cos, rope.Sin, stage(d, rows), heads, dx.Stride, dout.Stride, x.Stride, norm.PlusOne)
	})
}
