//go:build cuda

package rows

import (
	"fmt"
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// rotationOf describes which columns are rotated.
func rotationOf(rope kernels.Rope, w kernels.Tensor) ropeRotation {
	pairs := rope.Cos.Cols
	if rope.First < 0 || rope.First+2*pairs > rope.HeadDim || rope.Interleaved && !w.IsNil() {
		panic(fmt.Sprintf("cuda: heads with norm %s and %+v", w, rope))
	}
	t := ropeRotation{dim: int32(rope.HeadDim), pairs: int32(pairs), first: int32(rope.First)}
	if rope.Interleaved {
		t.interleaved = 1
	}
	return t
}

// rotationKind is Kind of rope.cu; the tensors are those whose rows hold heads.
func rotationKind(rope kernels.Rope, rows ...kernels.Tensor) string {
	dim, pairs := rope.HeadDim, rope.Cos.Cols
	switch {
	case !rope.Interleaved && 2*pairs == dim && dim == 8*headThreads(dim) && fours(rows...) &&
		fours(rope.Cos, rope.Sin):
		return "full"
	case !rope.Interleaved && rope.First%8 == 0 && pairs%8 == 0:
		return "halves"
	case rope.Interleaved && rope.First%2 == 0:
		return "neighbours"
	}
	return "others"
}

// fours reports that four columns from any multiple of four on are one access.
func fours(tensors ...kernels.Tensor) bool {
	for _, t := range tensors {
		if t.Stride%4 != 0 || driver.Address(t)%cu.DevicePtr(4*t.DType.Size()) != 0 {
			return false
		}
	}
	return true
}

// headThreads is how many threads share a head, eight columns each.
func headThreads(dim int) int {
	for _, threads := range []int{8, 16, 32} {
		if dim <= 8*threads {
			return threads
		}
	}
	panic(kernels.Fault{Err: fmt.Errorf("norms of heads and rotary positions on the GPU support heads of up to 256 "+
		"columns, not %d", dim)})
}

// ropeShape is how many heads the threads of a head take at a time where all columns of a head are rotated, forward and
// backward, as rope.cu has it. Others are taken one by one.
type ropeShape struct{ forward, backward int }

var ropeShapes = map[int]ropeShape{8: {2, 2}, 16: {4, 2}, 32: {4, 2}}

// HeadNormRope normalises each head of x [T, heads*D] with w, unless w is nil, and rotates pairs of its columns.
func (d *Ops) HeadNormRope(out, rstd, x, w, positions kernels.Tensor, rope kernels.Rope, norm kernels.Norm) {
	heads, threads, kind := x.Cols/rope.HeadDim, headThreads(rope.HeadDim), rotationKind(rope, out, x, w)
	rotation, variant := rotationOf(rope, w), fmt.Sprintf("_%d%s", threads, driver.Suffix(x))
	if kind == "full" {
		parts := x.Rows * driver.Blocks(heads, ropeShapes[threads].forward)
		launchHeadNormRopeFull(d.Context, variant, [3]int{driver.Blocks(parts, headsThreads/threads), 1, 1},
			headsThreads, 0, &rotation, out, rstd, x, w, positions, rope.Cos, rope.Sin, x.Rows, heads, out.Stride,
			x.Stride,
			norm.Eps, driver.Flag(norm.PlusOne))
		return
	}
	launchHeadNormRope(d.Context, "_"+kind+variant, [3]int{x.Rows, 1, 1}, min(128, driver.Blocks(heads*threads, 32)*32),
		0, &rotation, out, rstd, x, w, positions, rope.Cos, rope.Sin, heads, out.Stride, x.Stride, norm.Eps,
		driver.Flag(norm.PlusOne))
}

// HeadNormRopeBackward writes dx, which may be dout, and adds to dw F32 [1, D], which may be nil. Blocks of threads
// take runs of rows, so a weight's gradient is added up in two steps.
func (d *Ops) HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions kernels.Tensor, rope kernels.Rope,
	norm kernels.Norm, segments []int32) {
	heads, threads, kind, atOnce := x.Cols/rope.HeadDim, headThreads(rope.HeadDim), rotationKind(rope, dx, dout, x, w),
		1
	if kind == "full" {
		atOnce = ropeShapes[threads].backward
	}
	rotation := rotationOf(rope, w)
	d.sumHeads(dw, segments, heads, rope.HeadDim, atOnce, func(grid [3]int, shared int, sums cu.DevicePtr,
		runs driver.Array[int32], count int) {
		launchHeadNormRopeBackward(d.Context, fmt.Sprintf("_%s_%d%s", kind, threads, driver.Suffix(x)), grid,
			headsThreads, shared, &rotation, dx, sums, dout, x, rstd, w, positions, rope.Cos, rope.Sin, runs, count,
			heads,
			dx.Stride, dout.Stride, x.Stride, driver.Flag(norm.PlusOne))
	})
}

// sumHeads runs a kernel by blocks that have the heads of one run of rows or more, so many at once in the threads of
// one (heads.cuh). It writes sums F32 [runs, columns of a head] unless dw F32 [1, columns] is nil, and they are added
// to it.
func (d *Ops) sumHeads(dw kernels.Tensor, segments []int32, heads, dim, atOnce int, run func(grid [3]int, shared int,
	sums cu.DevicePtr, runs driver.Array[int32], count int)) {
	groups := headsThreads / headThreads(dim)
	down := groups / min(groups, driver.Blocks(heads, atOnce))
	blocks, blocksOf := kernels.RowBlocks(segments)
	runs, runsOf := kernels.RowRuns(blocks)
	count, staged := len(runs)-1, driver.Stage(d.Context, slices.Concat(runs, runsOf, blocksOf))
	grid := [3]int{driver.Blocks(count, down), 1, 1}
	if dw.IsNil() {
		run(grid, 0, 0, staged, count)
		return
	}
	sums := d.Scratch(4 * count * dim)
	run(grid, 4*groups*atOnce*dim, sums, staged, count)
	launchAddRuns(d.Context, [3]int{driver.Blocks(dim, 32), 1, 1}, normAdders, 0, dw, sums, staged.From(len(runs)),
		staged.From(len(runs)+len(runsOf)), len(blocks)-1, dim, kernels.SegmentStep(dw))
}
