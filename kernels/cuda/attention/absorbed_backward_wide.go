//go:build cuda

package attention

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Numbers of absorbed_dq_wide.cu and absorbed_dkv_wide.cu: threads of a block, bytes of shared memory.
const (
	dsThreads = 2*128 + absorbedDqWideProducers
	// queries, their gradients and boxes of keys
	dsShared  = (absorbedWideBoxes + absorbedDqWideGradBoxes + absorbedDqWideSlots) * warpgroupPanel
	dqThreads = (absorbedDqWideTeams + 1) * 128
	// stages of keys, tiles of dS
	dqShared   = absorbedDqWideParts*absorbedDqWidePartSize + absorbedDqWideTiles*warpgroupPanel
	pdsThreads = 3 * 128
	pdsShared  = (2 + absorbedDkvWideStages) * warpgroupPanel // the last columns of 128 keys, boxes of queries
	// five stages of 128 keys and 192 columns; less with 256 and 64
	dkvThreads, dkvShared = 384, 5 * (2 + 3) * warpgroupPanel
	dsBytes               = 2 * absorbedHeads * keyRows // dS of 64 entries of a query's list
	unitBytes             = 2 * absorbedDkvWideUnit     // P of a unit, and dS
)

// wideGradients is a call by wgmma, cut so that dS of dq, and P and dS of dk and dv, take about d.ChunkBytes bytes.
type wideGradients struct {
	calls                []absorbedCall
	block                queryBlock
	keys                 keyWork
	passes               []keyPass
	units                int // of the largest pass
	scratch, sums, flags int // numbers of the workspace
}

func (w *wideGradients) floats() []int { return []int{w.scratch, w.sums, w.flags} }

func (g *absorbedGradients) planWide(listed bool) (w wideGradients) {
	bytes := dsBytes * driver.Blocks(g.a.Heads, absorbedHeads)
	if !g.dq.IsNil() {
		w.calls = g.lists.calls(keyRows, bytes, g.d.ChunkBytes, false)
	}
	for _, c := range w.calls {
		w.scratch = max(w.scratch, c.count*c.splits*bytes/4)
	}
	if g.dk.IsNil() {
		return w
	}
	w.block = queryBlocks(g.a.Heads, keyRows)
	w.keys = planKeys(g.l, g.part, absorbedDkvWideKeys, w.block.queries)
	w.passes = w.keys.passes(g.d.ChunkBytes / (2 * unitBytes * w.block.pieces))
	for _, p := range w.passes {
		w.units = max(w.units, p.blocks*w.block.pieces)
	}
	w.scratch = max(w.scratch, w.units*2*unitBytes/4)
	if len(w.passes) > 1 && g.chains.IsNil() {
		w.sums = g.l.Rows() * (g.a.HeadDim + g.a.Values())
	}
	if listed {
		w.flags = len(w.keys.tiles) * w.keys.words
	}
	return w
}

// queriesWide is dq by wgmma.
func (g *absorbedGradients) queriesWide(w *wideGradients, scratch cu.DevicePtr) {
	for _, c := range w.calls {
		g.slopes(c, scratch, 0)
		g.queryGrads(c, scratch)
	}
}

// slopes is dS along the lists of a call, and P where it has a place.
func (g *absorbedGradients) slopes(c absorbedCall, ds, p cu.DevicePtr) {
	a, grid := g.a, [3]int{c.count, driver.Blocks(g.a.Heads, absorbedHeads), 1}
	launchAbsorbedDsWide(g.d.Context, "_576_512", grid, dsThreads, dsShared, &g.lists.params, g.entries, ds, p, g.dout,
		g.lse, g.delta, g.q, g.k, c.first, a.Heads, c.splits, g.dout.Stride, g.lse.Stride, g.q.Stride, g.k.Stride,
		scoreScale(a), float32(a.Scale))
}

// queryGrads is dq of a call from its dS.
func (g *absorbedGradients) queryGrads(c absorbedCall, ds cu.DevicePtr) {
	grid := [3]int{c.count, driver.Blocks(g.a.Heads, absorbedHeads), 1}
	launchAbsorbedDqWide(g.d.Context, "_576_512", grid, dqThreads, dqShared, &g.lists.params, g.dq, ds, g.k, c.first,
		g.a.Heads, c.splits, g.dq.Stride, g.k.Stride)
}

// keysWide is dk and dv by wgmma; parts are the pieces of w.floats.
func (g *absorbedGradients) keysWide(w *wideGradients, parts []cu.DevicePtr) {
	if len(w.passes) == 0 {
		return
	}
	d, a, scratch, sums, flags := g.d, g.a, parts[0], parts[1], parts[2]
	if !g.chains.IsNil() {
		sums = driver.AtType(g.chains, kernels.F32)
	}
	if g.masks == 0 {
		flags = 0
	} else {
		launchAbsorbedFlags(d.Context, [3]int{len(w.keys.tiles), w.keys.words, 1}, 32, 0, flags, g.masks,
			driver.Stage(d.Context, w.keys.tiles), a.Heads, g.rows)
	}
	slopes, maps := scratch+cu.DevicePtr(w.units*unitBytes), g.keyMaps(w, scratch)
	for _, p := range w.passes {
		tiles := w.keys.of(p)
		if len(tiles) == 0 {
			continue
		}
		tilesAt, units := driver.Stage(d.Context, tiles), p.blocks*w.block.pieces
		if units > 0 {
			launchAbsorbedPdsWide(d.Context, "_576_512", [3]int{min(units, d.Processors), 1, 1}, pdsThreads, pdsShared,
				maps, scratch, slopes, g.lse, g.delta, g.k, g.masks, tilesAt, flags, a.Heads, units, g.rows,
				g.lse.Stride, g.k.Stride, scoreScale(a), float32(a.Scale))
		}
		wide := wideTiles(len(tiles), d.Processors)
		blocks := wide*absorbedDkvWideWide + (len(tiles)-wide)*absorbedDkvWideNarrow
		launchAbsorbedDkvWide(d.Context, "_576_512", [3]int{blocks, 1, 1}, dkvThreads, dkvShared, maps, sums, g.dk,
			g.dv, tilesAt, flags, wide, a.Heads, g.dk.Stride, g.dv.Stride)
	}
}

// wideTiles is how many of a pass's tiles have few wide blocks: those that fill waves of the processors. Narrow blocks
// of the others, which have fewest queries, take less than another wave where they fit in two of their own.
func wideTiles(tiles, processors int) int {
	full := tiles * absorbedDkvWideWide / processors * processors / absorbedDkvWideWide
	if (tiles-full)*absorbedDkvWideNarrow > 2*processors {
		return tiles
	}
	return full
}

// keyMaps are boxes of the heads of a query, and of P and dS of a unit.
func (g *absorbedGradients) keyMaps(w *wideGradients, scratch cu.DevicePtr) *absorbedDkvWideKeyMaps {
	d, each := g.d, keyRows/w.block.queries
	units := func(p cu.DevicePtr) driver.TensorMap {
		return d.Boxes(kernels.Tensor{Data: driver.Pointer(p), DType: kernels.BF16, Groups: 1,
			Rows: max(w.units, 1) * absorbedDkvWideKeys, Cols: keyRows, Stride: keyRows}, absorbedDkvWideKeys)
	}
	return &absorbedDkvWideKeyMaps{d.HeadBoxes(g.q, g.a.Heads, 64, each, 128),
		d.HeadBoxes(g.dout, g.a.Heads, 64, each, 128), units(scratch),
		units(scratch + cu.DevicePtr(w.units*unitBytes))}
}
