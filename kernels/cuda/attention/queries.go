//go:build cuda

package attention

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// queryTile and queryRow are Queries and Query of queries.cuh.
type (
	queryTile struct{ row, pos, count, first, base, pages int32 }
	queryRow  struct{ row, pos int32 }
)

// queryCall is some tiles and their rows, as many as the workspace of a call may hold.
type queryCall struct {
	tiles, rows     int
	tilesAt, rowsAt cu.DevicePtr
}

// queryPlan is a layout's queries in tiles of a number of them, call after call.
type queryPlan struct {
	pages          cu.DevicePtr
	calls          []queryCall
	longest        int // keys that the last query of a span sees
	mostTiles      int // of a call
	mostRows       int
	tiles, queries cu.DevicePtr // of all calls
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
	p := &queryPlan{longest: longest(l)}
	var pages []int32
	var tiles []queryTile
	var rows []queryRow
	var call queryCall
	flush := func() {
		if call.tiles > 0 {
			p.calls = append(p.calls, call)
			p.mostTiles, p.mostRows = max(p.mostTiles, call.tiles), max(p.mostRows, call.rows)
		}
		call = queryCall{tilesAt: cu.DevicePtr(24 * len(tiles)), rowsAt: cu.DevicePtr(8 * len(rows))}
	}
	for _, s := range l.Spans {
		t := queryTile{base: int32(s.Row), pages: -1}
		if kv.PageRows > 0 {
			t.pages = int32(len(pages))
			pages = append(pages, s.Pages...)
		}
		for at := 0; at < s.Rows; at += each {
			n := min(each, s.Rows-at)
			if (call.rows+n)*rowBytes > d.ChunkBytes {
				flush()
			}
			t.row, t.pos, t.count, t.first = int32(s.Row+at), int32(s.Pos+at), int32(n), int32(call.rows)
			tiles = append(tiles, t)
			for i := range n {
				rows = append(rows, queryRow{t.row + int32(i), t.pos + int32(i)})
			}
			call.tiles, call.rows = call.tiles+1, call.rows+n
		}
	}
	flush()
	p.pages, p.tiles, p.queries = driver.Stage(d.Context, pages), driver.Stage(d.Context, tiles),
		driver.Stage(d.Context, rows)
	for i := range p.calls {
		p.calls[i].tilesAt += p.tiles
		p.calls[i].rowsAt += p.queries
	}
	return p
}
