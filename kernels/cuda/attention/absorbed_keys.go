//go:build cuda

package attention

import (
	"slices"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// queryBlock is QueryBlock of key_tile.cuh: blocks of rows (query, head) have the heads of so many queries, or, in so
// many pieces, those of one.
type queryBlock struct{ queries, pieces int }

func queryBlocks(heads, rows int) queryBlock {
	each := 16
	for each < min(heads, rows) {
		each *= 2
	}
	return queryBlock{rows / each, driver.Blocks(heads, rows)}
}

// keyWork is the blocks of queries that continue the chains of a part's keys.
type keyWork struct {
	tiles  []keyTile // with all their blocks
	words  int       // of flags of a tile
	blocks []int     // tiles that block x of the queries of all sequences has keys of
}

// planKeys cuts sequences into tiles of so many keys from position 0; a tile may have others' keys besides the part's.
func planKeys(l *kernels.Layout, part kernels.KeyPart, keys, queries int) (w keyWork) {
	last := driver.Blocks(longest(l), queries)
	w.words, w.blocks = driver.Blocks(last, 32), make([]int, last)
	changes := make([]int, last+1) // from block to block
	for _, s := range l.Spans {
		begin, end := max(part.From-s.Row, 0), min(part.To-s.Row, s.Rows)
		for at := 0; at < s.Rows; at += keys {
			if !within(part, s.Row+at, min(keys, s.Rows-at)) {
				continue
			}
			t := keyTile{row: int32(s.Row), rows: int32(s.Rows), at: int32(at), query: int32(s.Row - part.From),
				begin: int32(begin), end: int32(end), flags: int32(len(w.tiles) * w.words),
				begins: int32(flag(part.Begins)), ends: int32(flag(part.Ends))}
			if from := max(begin, at); from < end {
				t.from = int32(from / queries)
				t.count = int32(driver.Blocks(end, queries)) - t.from
				changes[t.from]++
				changes[t.from+t.count]--
			}
			w.tiles = append(w.tiles, t)
		}
	}
	n := 0
	for x := range w.blocks {
		n += changes[x]
		w.blocks[x] = n
	}
	return w
}

// keyPass is the kernels of dk and dv with blocks [from, to) of queries, and its blocks of all tiles.
type keyPass struct{ from, to, blocks int }

// passes cuts the blocks of queries so that no pass has more than `most` blocks of tiles, or more than it must. Chains
// go over queries ascending, and so do the passes.
func (w *keyWork) passes(most int) (passes []keyPass) {
	if len(w.tiles) == 0 {
		return nil
	}
	for from := 0; from < len(w.blocks); {
		p := keyPass{from, from, 0}
		for p.to < len(w.blocks) && (p.blocks == 0 || p.blocks+w.blocks[p.to] <= most) {
			p.blocks += w.blocks[p.to]
			p.to++
		}
		passes = append(passes, p)
		from = p.to
	}
	return passes
}

// of is the tiles of a pass, those with most blocks first. Chains begin with the first pass that a tile is in and end
// with the last; a tile without queries is in the first of all, for the zeros of its gradients.
func (w *keyWork) of(p keyPass) (tiles []keyTile) {
	for _, t := range w.tiles {
		first, end := int(t.from), int(t.from+t.count)
		from, to := max(p.from, first), min(p.to, end)
		if from >= to && (t.count > 0 || p.from > 0) {
			continue
		}
		if t.count > 0 {
			t.from, t.count = int32(from), int32(to-from)
			t.begins *= int32(flag(from == first))
			t.ends *= int32(flag(to == end))
		}
		tiles = append(tiles, t)
	}
	slices.SortStableFunc(tiles, func(x, y keyTile) int { return int(y.count - x.count) })
	blocks := int32(0)
	for i := range tiles {
		tiles[i].first = blocks
		blocks += tiles[i].count
	}
	return tiles
}

// allKeys is the keys of a layout, by all queries.
func allKeys(l *kernels.Layout) kernels.KeyPart {
	return kernels.KeyPart{To: l.Rows(), Keys: [][2]int{{0, l.Rows()}}, Begins: true, Ends: true}
}

// within tells whether one of so many rows from a row on is of a part's keys.
func within(p kernels.KeyPart, row, rows int) bool {
	return slices.ContainsFunc(p.Keys, func(k [2]int) bool { return row < k[1] && row+rows > k[0] })
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
