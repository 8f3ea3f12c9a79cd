//go:build cuda

package attention

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/kernels/cuda/rows"
)

// Sinks puts a logit of each head into the denominator of a finished attention, in place. out [T, Heads*D], lse F32 [T,
// Heads], sinks [1, Heads].
func (d *Ops) Sinks(out, lse, sinks kernels.Tensor) {
	heads := sinks.Cols
	launchSinks(d.Context, driver.Suffix(out), driver.WarpGrid(out.Rows*heads), driver.WarpThreads, 0, out, lse, sinks,
		out.Rows, heads, out.Cols/heads, out.Stride, lse.Stride)
}

// SinksBackward adds to dsinks F32 [1, Heads]; out and lse are those that Sinks wrote.
func (d *Ops) SinksBackward(dsinks, dout, out, lse, sinks kernels.Tensor, segments []int32) {
	heads, blocks := sinks.Cols, rows.StageBlocks(d.Context, segments)
	parts := d.Scratch(4 * heads * (out.Rows + blocks.Count))
	sums := parts + cu.DevicePtr(4*heads*out.Rows)
	launchSinksBackward(d.Context, driver.Suffix(out), driver.WarpGrid(out.Rows*heads), driver.WarpThreads, 0, parts,
		dout, out, lse, sinks, out.Rows, heads, out.Cols/heads, dout.Stride, out.Stride, lse.Stride)
	rows.AddRows(d.Context, dsinks, parts, sums, blocks)
}
