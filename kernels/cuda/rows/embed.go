//go:build cuda

package rows

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Embed: out[t] = table[ids[t]]; table [V, H], ids int32 [T], out [T, H].
func (d *Ops) Embed(out, table, ids kernels.Tensor) {
	launchTake(d.Context, driver.Suffix(out), driver.PartGrid(rowsMoved, out.Rows, out.Cols), driver.WarpThreads, 0,
		out, table, ids, out.Rows, out.Cols, out.Stride, table.Stride)
}

// Gather: out[r] = x[source[r]]; x [T, H], source int32 [R], out [R, H].
func (d *Ops) Gather(out, x, source kernels.Tensor) { d.Embed(out, x, source) }

// EmbedBackward adds to each row of dtable F32 [V, H], segment by segment, the sum of the rows of dout [T, H] whose id
// it has, t ascending.
func (d *Ops) EmbedBackward(dtable, dout, ids kernels.Tensor, segments []int32) {
	const columns = 512 // of a warp
	links := d.Scratch(4 * dout.Rows)
	launchEmbedLink(d.Context, driver.WarpGrid(dout.Rows), driver.WarpThreads, 0, links, ids, dout.Rows)
	grid := driver.WarpGrid(dout.Rows)
	grid[1] = driver.Blocks(dout.Cols, columns)
	launchEmbedBackward(d.Context, driver.Suffix(dout), grid, driver.WarpThreads, 0, dtable, dout, ids, links,
		driver.Stage(d.Context, segments), dout.Rows, dout.Cols, dout.Stride)
}
