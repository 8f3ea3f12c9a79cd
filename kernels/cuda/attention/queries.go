//go:build cuda

package attention

import (
	"slices"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// queryCall is some tiles and their rows, as many as the workspace of a call may hold.
type queryCall struct {
	tiles, rows int
	// of all calls' tiles and rows
	first, firstRow int
	tilesAt         driver.Array[queries]
	rowsAt          driver.Array[queriesQuery]
}

// queryTiles is a layout's queries in tiles of a number of them, call after call.
type queryTiles struct {
	tiles     []queries
	rows      []queriesQuery
	keyPages  []int32
	calls     []queryCall
	longest   int // keys that the last query of a span sees
	mostTiles int // of a call
	mostRows  int
}

// tileShape is what tiles of queries are cut by, besides the layout.
type tileShape struct{ pageRows, each int }

// queryPlan is tiles of queries on the card.
type queryPlan struct {
	*queryTiles
	pages driver.Array[int32]
	calls []queryCall
}

// longest is how many keys the last query of a span sees, at most.
func longest(l *kernels.Layout) (n int) {
	for _, s := range l.Spans {
		n = max(n, s.Pos+s.Rows)
	}
	return n
}

// planQueries cuts spans into tiles of up to `each` queries. A call has at least one, and as many as the device has
// room for, rowBytes a row.
func planQueries(d *Ops, kv kernels.KV, l *kernels.Layout, each, rowBytes int) *queryPlan {
	most := d.ChunkBytes / rowBytes
	tiles := d.tiles.of(tileShape{kv.PageRows, each}, l, most, func() *queryTiles {
		return cutQueries(l, kv.PageRows, each, most)
	})
	p := &queryPlan{tiles, driver.Stage(d.Context, tiles.keyPages), slices.Clone(tiles.calls)}
	tilesAt, rowsAt := driver.Stage(d.Context, tiles.tiles), driver.Stage(d.Context, tiles.rows)
	for i := range p.calls {
		c := &p.calls[i]
		c.tilesAt, c.rowsAt = tilesAt.From(c.first), rowsAt.From(c.firstRow)
	}
	return p
}

// cutQueries cuts spans into tiles, and those into calls of up to `most` rows, or one tile.
func cutQueries(l *kernels.Layout, pageRows, each, most int) *queryTiles {
	p := &queryTiles{longest: longest(l)}
	var call queryCall
	flush := func() {
		if call.tiles > 0 {
			p.calls = append(p.calls, call)
			p.mostTiles, p.mostRows = max(p.mostTiles, call.tiles), max(p.mostRows, call.rows)
		}
		call = queryCall{first: len(p.tiles), firstRow: len(p.rows)}
	}
	for _, s := range l.Spans {
		t := queries{base: int32(s.KeyRow()), pages: -1}
		if pageRows > 0 {
			t.pages = int32(len(p.keyPages))
			p.keyPages = append(p.keyPages, s.Pages...)
		}
		for at := 0; at < s.Rows; at += each {
			n := min(each, s.Rows-at)
			if call.rows+n > most {
				flush()
			}
			t.row, t.pos, t.count, t.first = int32(s.Row+at), int32(s.Pos+at), int32(n), int32(call.rows)
			p.tiles = append(p.tiles, t)
			for i := range n {
				p.rows = append(p.rows, queriesQuery{t.row + int32(i), t.pos + int32(i)})
			}
			call.tiles, call.rows = call.tiles+1, call.rows+n
		}
	}
	flush()
	return p
}
