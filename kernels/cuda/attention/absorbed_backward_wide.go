//go:build cuda

package attention

import (
	"slices"

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
	// five stages of 128 keys and 192 columns; less with 256
	dkvThreads, dkvShared = 384, 5 * (2 + 3) * warpgroupPanel
	dkvBlocks             = 5                           // of a tile of keys
	dsBytes               = 2 * absorbedHeads * keyRows // dS of 64 entries of a query's list
	unitBytes             = 2 * absorbedDkvWideUnit     // P of a unit, and dS
)

// keyPass is a launch of the kernels of dk and dv: some heads of all blocks of queries, or some blocks of one head.
type keyPass struct {
	head, heads, units int
	tiles              []absorbedDkvWideKeyTile
}

// keyPasses cuts the units of all heads so that no pass has more than `most`, or more than it must. Sums are chains
// over heads ascending, in each over queries ascending, and so are the passes.
func keyPasses(l *kernels.Layout, part kernels.KeyPart, heads, most int) (passes []keyPass) {
	last := driver.Blocks(longest(l), keyRows)
	add := func(head, heads, from, to int) {
		tiles, units := keyTiles(l, part, from, to)
		passes = append(passes, keyPass{head, heads, heads * units, tiles})
	}
	_, all := keyTiles(l, part, 0, last)
	if all == 0 {
		return nil
	}
	if each := min(most/all, heads); each > 0 {
		n := driver.Blocks(heads, each)
		for i := range n {
			add(heads*i/n, heads*(i+1)/n-heads*i/n, 0, last)
		}
		return passes
	}
	for head := range heads {
		for from := 0; from < last; {
			to, units := from, 0
			for to < last && (units == 0 || units+queryUnits(l, part, to) <= most) {
				units += queryUnits(l, part, to)
				to++
			}
			add(head, 1, from, to)
			from = to
		}
	}
	return passes
}

// queryUnits is how many key tiles of a part block x of the queries of all sequences has keys of.
func queryUnits(l *kernels.Layout, part kernels.KeyPart, x int) (n int) {
	for _, s := range l.Spans {
		for at := 0; at <= x*keyRows && x*keyRows < s.Rows; at += absorbedDkvWideKeys {
			n += flag(within(part, s.Row+at, absorbedDkvWideKeys))
		}
	}
	return n
}

// keyTiles is the tiles of a part that blocks [from, to) of queries have keys of, those with most blocks first, and the
// units.
func keyTiles(l *kernels.Layout, part kernels.KeyPart, from, to int) (tiles []absorbedDkvWideKeyTile, units int) {
	width, flags := driver.Blocks(longest(l), keyRows), 0
	for _, s := range l.Spans {
		for at := 0; at < s.Rows; at += absorbedDkvWideKeys {
			first := max(from, at/keyRows)
			count := min(to, driver.Blocks(s.Rows, keyRows)) - first
			if count > 0 && within(part, s.Row+at, absorbedDkvWideKeys) {
				tiles = append(tiles, absorbedDkvWideKeyTile{int32(s.Row), int32(s.Rows), int32(at), int32(first),
					int32(count), 0,
					int32(flags)})
			}
			flags += width
		}
	}
	slices.SortStableFunc(tiles, func(x, y absorbedDkvWideKeyTile) int { return int(y.count - x.count) })
	for i := range tiles {
		tiles[i].first = int32(units)
		units += int(tiles[i].count)
	}
	return tiles, units
}

// wideGradients is a call by wgmma, cut so that dS of dq, and P and dS of dk and dv, take about d.ChunkBytes bytes.
type wideGradients struct {
	calls                []absorbedCall
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
	if !g.dk.IsNil() {
		w.passes = keyPasses(g.l, g.part, g.a.Heads, g.d.ChunkBytes/(2*unitBytes))
	}
	for _, p := range w.passes {
		w.units = max(w.units, p.units)
	}
	w.scratch = max(w.scratch, w.units*2*unitBytes/4)
	if len(w.passes) > 1 && g.chains.IsNil() {
		w.sums = g.rows * (g.a.HeadDim + g.a.Values())
	}
	if listed {
		tiles := 0
		for _, s := range g.l.Spans {
			tiles += driver.Blocks(s.Rows, absorbedDkvWideKeys)
		}
		w.flags = tiles * driver.Blocks(longest(g.l), keyRows)
	}
	return w
}

// wide is by wgmma; parts are the pieces of w.floats.
func (g *absorbedGradients) wide(w *wideGradients, parts []cu.DevicePtr) {
	d, a, scratch, sums, flags := g.d, g.a, parts[0], parts[1], parts[2]
	if !g.chains.IsNil() {
		sums = driver.AtType(g.chains, kernels.F32)
	}
	for _, c := range w.calls {
		grid := [3]int{c.count, driver.Blocks(a.Heads, absorbedHeads), 1}
		launchAbsorbedDsWide(d.Context, "_576_512", grid, dsThreads, dsShared, &g.lists.params, scratch, g.dout, g.lse,
			g.delta, g.q, g.k, c.first, a.Heads, c.splits, g.dout.Stride, g.lse.Stride, g.q.Stride, g.k.Stride,
			scoreScale(a), float32(a.Scale))
		launchAbsorbedDqWide(d.Context, "_576_512", grid, dqThreads, dqShared, &g.lists.params, g.dq, scratch, g.k,
			c.first, a.Heads, c.splits, g.dq.Stride, g.k.Stride)
	}
	if len(w.passes) == 0 {
		return
	}
	if g.masks == 0 {
		flags = 0
	} else {
		width := driver.Blocks(longest(g.l), keyRows)
		tiles, _ := keyTiles(g.l, g.part, 0, width)
		launchAbsorbedFlags(d.Context, [3]int{len(tiles), width, 1}, 32, 0, flags, g.masks,
			driver.Stage(d.Context, tiles), g.rows)
	}
	slopes := scratch + cu.DevicePtr(w.units*unitBytes)
	units := func(p cu.DevicePtr) driver.TensorMap {
		return d.Boxes(kernels.Tensor{Data: driver.Pointer(p), DType: kernels.BF16, Groups: 1,
			Rows: w.units * absorbedDkvWideKeys, Cols: keyRows, Stride: keyRows}, absorbedDkvWideKeys)
	}
	maps := absorbedDkvWideKeyMaps{d.Boxes(g.q, keyRows), d.Boxes(g.dout, keyRows), units(scratch), units(slopes)}
	for _, p := range w.passes {
		tiles, units := driver.Stage(d.Context, p.tiles), p.units/p.heads
		launchAbsorbedPdsWide(d.Context, "_576_512", [3]int{min(units, d.Processors), 1, 1}, pdsThreads, pdsShared,
			&maps, scratch, slopes, g.lse, g.delta, g.k, g.masks, tiles, flags, p.head, p.heads, a.Heads, units, g.rows,
			g.lse.Stride, g.k.Stride, scoreScale(a), float32(a.Scale))
		launchAbsorbedDkvWide(d.Context, "_576_512", [3]int{dkvBlocks * len(p.tiles), 1, 1}, dkvThreads, dkvShared,
			&maps, sums, g.dk, g.dv, tiles, flags, flag(g.part.Begins), flag(g.part.Ends), p.head, p.heads,
			a.Heads, g.dk.Stride, g.dv.Stride)
	}
}
