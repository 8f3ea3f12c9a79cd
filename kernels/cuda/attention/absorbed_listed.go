//go:build cuda

package attention

import (
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

const slicesThreads = 128 // of a block of absorbed_slices

// listedPass is a call of the kernels of dk and dv along lists: some queries, and the tiles of keys that they may list.
type listedPass struct {
	absorbedCall
	tiles []absorbedListedOwnKeys
}

// shortLists tells whether dk and dv take less time along lists than by all pairs.
func (g *absorbedGradients) shortLists() bool {
	switch g.d.Path {
	case "lists":
		return true
	case "pairs":
		return false
	}
	work := g.part.Work(g.l, g.lists.topK)
	return work.AlongLists(g.a.Heads) < work.Pairs
}

// listedTiles cuts the keys of a part into tiles of about one size, that of a block at most.
func listedTiles(l *kernels.Layout, part kernels.KeyPart) (tiles []absorbedListedOwnKeys) {
	for _, s := range l.Spans {
		for _, keys := range part.Keys {
			from, to := max(s.Row, keys[0]), min(s.Row+s.Rows, keys[1])
			n := driver.Blocks(max(to-from, 0), absorbedListedTileKeys)
			for i := range n {
				first, end := from+(to-from)*i/n, from+(to-from)*(i+1)/n
				tiles = append(tiles, absorbedListedOwnKeys{row: int32(first), at: int32(first - s.Row),
					keys: int32(end - first)})
			}
		}
	}
	return tiles
}

// listedPasses is passes over calls of a part's queries, from the last call to the first: queries are numbered from the
// last one of a sequence back, and chains go over queries ascending. Tiles without a query in any pass, whose chains
// begin or end here nevertheless, are of the last pass.
func listedPasses(l *kernels.Layout, part kernels.KeyPart, lists *queryLists, calls []absorbedCall) []listedPass {
	all := listedTiles(l, part)
	sequenceOf := func(t absorbedListedOwnKeys) int {
		return slices.IndexFunc(lists.sequences, func(s absorbedSequence) bool { return s.base == t.row-t.at })
	}
	begun := make([]bool, len(all))
	var passes []listedPass
	for i := len(calls) - 1; i >= 0; i-- {
		p := listedPass{absorbedCall: calls[i]}
		for n, t := range all {
			at := sequenceOf(t)
			if at >= 0 {
				s := lists.sequences[at]
				from, to := max(p.first, int(s.start)), min(p.first+p.count, lists.end(at), int(s.start+s.pos-t.at)+1)
				t.query, t.from, t.to = s.row+s.start, int32(from), int32(max(from, to))
				t.ends = int32(flag(part.Ends && from == int(s.start)))
			}
			if t.from == t.to {
				if begun[n] || i > 0 || !part.Begins && !part.Ends {
					continue
				}
				t.ends = int32(flag(part.Ends))
			}
			t.begins = int32(flag(part.Begins && !begun[n]))
			begun[n] = true
			p.tiles = append(p.tiles, t)
		}
		slices.SortStableFunc(p.tiles, func(x, y absorbedListedOwnKeys) int {
			return int(y.to - y.from - x.to + x.from)
		})
		passes = append(passes, p)
	}
	return passes
}

// listedGradients is a call by wgmma that goes along lists for dk and dv too, and computes dS once for all.
type listedGradients struct {
	passes               []listedPass
	slopes, sums, firsts int // numbers of the workspace: dS and as much of P; chains between passes; slices
	own, entries         int // and what lists have of the part's keys, where others have keys too; 0: lists are whole
}

func (w *listedGradients) floats() []int {
	return []int{2 * w.slopes, w.sums, w.firsts, w.own, w.entries}
}

func (g *absorbedGradients) planListed() (w listedGradients) {
	bytes := dsBytes * driver.Blocks(g.a.Heads, absorbedHeads)
	w.passes = listedPasses(g.l, g.part, g.lists, g.lists.calls(keyRows, 2*bytes, g.d.ChunkBytes, false))
	for _, p := range w.passes {
		w.slopes = max(w.slopes, p.count*p.splits*bytes/4)
		w.firsts = max(w.firsts, len(p.tiles)*absorbedListedBounds*p.count)
	}
	if len(w.passes) > 1 && g.chains.IsNil() {
		w.sums = g.l.Rows() * (g.a.HeadDim + g.a.Values())
	}
	if g.dq.IsNil() && len(g.part.Keys) > 0 {
		w.own, w.entries = g.rows*g.lists.topK, g.rows
	}
	return w
}

// ownEntries leaves of the lists the entries that are keys of the part: P and dS of others are other devices'.
func (g *absorbedGradients) ownEntries(own, entries cu.DevicePtr) {
	var ranges []absorbedListedKeyRange
	for _, keys := range g.part.Keys {
		ranges = append(ranges, absorbedListedKeyRange{from: int32(keys[0]), to: int32(keys[1])})
	}
	slices.SortFunc(ranges, func(x, y absorbedListedKeyRange) int { return int(x.from - y.from) })
	launchAbsorbedOwn(g.d.Context, driver.WarpGrid(g.lists.queries), driver.WarpThreads, 0, &g.lists.params, own,
		entries, driver.Stage(g.d.Context, ranges), len(ranges), g.lists.queries)
	g.lists.params.indices, g.lists.params.stride = own, driver.Int32(g.lists.topK)
	g.entries = entries
}

// listed is by wgmma, and by mma.sync along lists; parts are the pieces of w.floats.
func (g *absorbedGradients) listed(w *listedGradients, parts []cu.DevicePtr) {
	ds, sums, firsts := parts[0], parts[1], parts[2]
	if w.own > 0 {
		g.ownEntries(parts[3], parts[4])
	}
	p := ds + cu.DevicePtr(4*w.slopes)
	if !g.chains.IsNil() {
		sums = driver.AtType(g.chains, kernels.F32)
	}
	for _, pass := range w.passes {
		g.slopes(pass.absorbedCall, ds, p)
		if !g.dq.IsNil() {
			g.queryGrads(pass.absorbedCall, ds)
		}
		if len(pass.tiles) > 0 {
			g.addListed(pass, sums, ds, p, firsts)
		}
	}
}

// addListed continues dk and dv by a pass, of which dS and P are there.
func (g *absorbedGradients) addListed(pass listedPass, sums, ds, p, firsts cu.DevicePtr) {
	d, a, lists, tiles := g.d, g.a, &g.lists.params, driver.Stage(g.d.Context, pass.tiles)
	launchAbsorbedSlices(d.Context, [3]int{driver.Blocks(pass.count, slicesThreads), len(pass.tiles), 1},
		slicesThreads, 0, lists, firsts, g.entries, tiles, pass.first, pass.count)
	boxes := func(t kernels.Tensor) driver.TensorMap {
		return d.HeadBoxes(t, a.Heads, absorbedListedChunk, absorbedHeads, 2*absorbedListedChunk)
	}
	launchAbsorbedDkvListed(d.Context, "_576_512", [3]int{absorbedListedChunks * len(pass.tiles), 1, 1},
		absorbedListedAllThreads, absorbedListedAllShared, &absorbedListedChunkMaps{boxes(g.q), boxes(g.dout)}, sums,
		g.dk, g.dv, ds, p, firsts, tiles, lists.indices, pass.first, pass.count,
		driver.Blocks(a.Heads, absorbedHeads), pass.splits, int(lists.stride), g.dk.Stride, g.dv.Stride)
}
