//go:build cuda

package attention

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

const listDotsThreads = 128 // of a block of list_dots

// listed is one call of the indexer loss or its gradient: the plan and the workspace.
type listed struct {
	*queryPlan
	d                *Ops
	indices          kernels.Tensor // nil: every row's list is all keys up to its own
	x                kernels.Index
	topK, most       int          // entries of a list, at most; keys of a tile
	rows, at, counts cu.DevicePtr // of the unions: rows of the keys, places of entries, how many
	dots, weights    cu.DevicePtr
}

// listed plans a call; more are further pieces of its workspace, in fp32 numbers.
func (d *Ops) listed(k, indices kernels.Tensor, l *kernels.Layout, x kernels.Index, more ...int) (*listed,
	[]cu.DevicePtr) {
	each := attentionRows / x.Heads
	s := &listed{d: d, indices: indices, x: x, topK: indices.Cols}
	if indices.IsNil() {
		s.topK = longest(l)
	}
	wide := driver.Blocks(s.topK, keyRows) * keyRows
	s.queryPlan = planQueries(d, kernels.KV{K: k}, l, each, 4*x.Heads*wide)
	s.most = min(s.longest, each*s.topK)
	pairs := s.mostRows * x.Heads
	parts := d.Floats(append([]int{s.mostTiles * s.most, s.mostRows * s.topK, s.mostTiles, pairs * s.topK,
		(pairs*wide + 1) / 2}, more...)...)
	s.rows, s.at, s.counts, s.dots, s.weights = parts[0], parts[1], parts[2], parts[3], parts[4]
	return s, parts[5:]
}

// multiply finds the keys on the lists of each tile of a call and writes their dots with q [T, Heads*Dim]; k [T, Dim].
// Few tiles are cut into parts of their keys, so that blocks fill the card twice.
func (s *listed) multiply(c queryCall, q, k kernels.Tensor) {
	launchListUnion(s.d.Context, [3]int{c.tiles, 1, 1}, listsUnionThreads, 12*driver.Blocks(s.longest, 64), s.rows,
		s.at, s.counts, s.indices, c.tilesAt, s.topK, s.most, s.indices.Stride)
	parts := min(driver.Blocks(2*s.d.Processors, c.tiles), driver.Blocks(s.most, keyRows))
	size := 2 * attentionRows * (s.x.Dim + 8)
	shared := size + 2*max(size, 4*keyRows*(keyRows+4))
	launchListDots(s.d.Context, fmt.Sprintf("_%d", s.x.Dim), [3]int{c.tiles, parts, 1}, listDotsThreads, shared, s.dots,
		q, k, c.tilesAt, s.rows, s.at, s.counts, s.x.Heads, s.topK, s.most, q.Stride, k.Stride)
}

// along adds rows of k [T, Dim] up to out [T, Heads*Dim], a block for a slice of the columns.
func (s *listed) along(c queryCall, out, k kernels.Tensor) {
	slice := 64
	if s.x.Dim%slice != 0 {
		slice = 16
	}
	shared := 2 * (slice + 8) * (listsRing*keyRows + 1 + listsAlongThreads/32*16)
	launchListAlong(s.d.Context, fmt.Sprintf("_%d", slice), [3]int{c.tiles, driver.Blocks(s.x.Dim, slice), 1},
		listsAlongThreads, shared, out, k, s.weights, c.tilesAt, s.rows, s.at, s.counts, s.x.Heads, s.x.Dim, s.topK,
		s.most, out.Stride, k.Stride)
}

// mark writes a bit for each row and key of a call, and how many entries lie before each 64 keys.
func (s *listed) mark(c queryCall, masks, firsts cu.DevicePtr) {
	width := driver.Blocks(s.longest, keyRows)
	launchListMasks(s.d.Context, [3]int{c.rows, driver.Blocks(width, driver.WarpThreads), 1}, driver.WarpThreads, 0,
		masks, firsts, s.indices, c.rowsAt, width, s.topK, s.indices.Stride)
}
