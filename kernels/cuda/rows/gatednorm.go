//go:build cuda

package rows

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// NormThenGate is kernels.DeltaNet's, of heads of as many columns as w F32 [1, n] has; x, z, out [T, heads*n], rstd F32
// [T, heads].
func (d *Ops) NormThenGate(out, rstd, x, z, w kernels.Tensor, eps float32) {
	heads := x.Cols / w.Cols
	threads := headThreads(w.Cols)
	launchNormThenGate(d.Context, fmt.Sprintf("_%d%s", threads, driver.Suffix(x)),
		[3]int{driver.Blocks(x.Rows*heads, headsThreads/threads), 1, 1}, headsThreads, 0, out, rstd, x, z, w, x.Rows,
		heads, w.Cols, out.Stride, rstd.Stride, x.Stride, z.Stride, eps)
}

// NormThenGateBackward writes dx and dz and adds to dw F32 [1, n], which may be nil.
func (d *Ops) NormThenGateBackward(dx, dz, dw, dout, x, z, rstd, w kernels.Tensor, segments []int32) {
	heads := x.Cols / w.Cols
	d.sumHeads(dw, segments, heads, w.Cols, 1, func(grid [3]int, shared int, sums cu.DevicePtr,
		runs driver.Array[int32], count int) {
		launchNormThenGateBackward(d.Context, fmt.Sprintf("_%d%s", headThreads(w.Cols), driver.Suffix(x)), grid,
			headsThreads, shared, dx, dz, sums, dout, x, z, rstd, w, runs, count, heads, w.Cols, dx.Stride, dz.Stride,
			dout.Stride, x.Stride, z.Stride, rstd.Stride)
	})
}

// GateThenNorm is kernels.Mamba's: x, z, out [T, n], w [1, n], rstd F32 [T, groups].
func (d *Ops) GateThenNorm(out, rstd, x, z, w kernels.Tensor, groups int, eps float32) {
	launchGateThenNorm(d.Context, driver.Suffix(x), driver.WarpGrid(x.Rows*groups), driver.WarpThreads, 0, out, rstd, x,
		z, w, x.Rows, groups, x.Cols/groups, out.Stride, rstd.Stride, x.Stride, z.Stride, eps)
}

// GateThenNormBackward writes dx and dz and adds to dw F32 [1, n], which may be nil.
func (d *Ops) GateThenNormBackward(dx, dz, dw, dout, x, z, rstd, w kernels.Tensor, groups int, segments []int32) {
	launchGateThenNormBackward(d.Context, driver.Suffix(x), driver.WarpGrid(x.Rows*groups), driver.WarpThreads, 0, dx,
		dz, dout, x, z, rstd, w, x.Rows, groups, x.Cols/groups, dx.Stride, dz.Stride, dout.Stride, x.Stride, z.Stride,
		rstd.Stride)
	if dw.IsNil() {
		return
	}
	blocks := StageBlocks(d.Context, segments)
	sums := d.Scratch(4 * blocks.Count * x.Cols)
	launchGateThenNormBlocks(d.Context, driver.Suffix(x), [3]int{driver.Blocks(x.Cols, 64), blocks.Count, 1}, 64, 0,
		sums, dout, x, z, rstd, blocks.Rows, x.Cols, x.Cols/groups, dout.Stride, x.Stride, z.Stride, rstd.Stride)
	AddBlocks(d.Context, dw, sums, blocks)
}
