//go:build cuda

package cuda

import "lockstep/kernels"

const (
	warpThreads = 256  // of blocks whose warps have a row each
	partColumns = 1024 // kMoved of rows.cuh
)

// warps is a grid of a warp for each row.
func warps(rows int) [3]int { return [3]int{blocks(rows, warpThreads/32), 1, 1} }

// parts is a grid of a warp for each part of each row of matrices side by side.
func parts(rows int, cols ...int) [3]int {
	grid := warps(rows)
	grid[1] = 0
	for _, c := range cols {
		grid[1] += blocks(c, partColumns)
	}
	return grid
}

// Embed: out[t] = table[ids[t]]; table [V, H], ids int32 [T], out [T, H].
func (d *Device) Embed(out, table, ids kernels.Tensor) {
	d.launch("take"+suffix(out), parts(out.Rows, out.Cols), warpThreads, 0, out, table, ids, out.Rows, out.Cols,
		out.Stride, table.Stride)
}

// Gather: out[r] = x[source[r]]; x [T, H], source int32 [R], out [R, H].
func (d *Device) Gather(out, x, source kernels.Tensor) { d.Embed(out, x, source) }

// EmbedBackward adds row t of dout [T, H] to row ids[t] of dtable F32 [V, H], t ascending for each row of the table.
func (d *Device) EmbedBackward(dtable, dout, ids kernels.Tensor) {
	const columns = 512 // of a warp
	grid := warps(dout.Rows)
	grid[1] = blocks(dout.Cols, columns)
	d.launch("embed_backward"+suffix(dout), grid, warpThreads, 0, dtable, dout, ids, dout.Rows, dout.Cols, dout.Stride)
}
