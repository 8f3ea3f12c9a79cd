package cpu

import (
	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// IndexBackward propagates the gradient of scores ds F32 [T, entries] to queries, keys and weights: dq [T, Heads*Dim],
// dk [T, Dim], dweights F32 [T, Heads].
func (d *Device) IndexBackward(dq, dk, dweights, ds, q, weights, k, selected kernels.Tensor, l *kernels.Layout,
	x kernels.Index) {
	const op = "index backward"
	mustEntries(ds, selected, l)
	mustIndexer(q, weights, k, x)
	mustShape(op, "dq", dq, l.Rows(), x.Heads*x.Dim)
	mustShape(op, "dk", dk, l.Rows(), x.Dim)
	mustShape(op, "dweights", dweights, l.Rows(), x.Heads)
	g := &indexGrad{
		d: d, shape: x, c: float32(x.Scale), lists: entriesOf(selected, l), bf16: k.DType == kernels.BF16,
		q: d.matrix(q), k: d.matrix(k), weights: d.matrix(weights), ds: d.matrix(ds), queries: q,
		keys: kernels.KV{K: k},
	}
	dqs, dks, dws := d.matrix(dq), d.matrix(dk), d.matrix(dweights)
	rows := seqRows(l)
	d.indexEach(len(rows), func(w *indexScratch, i int) { g.row(w, rows[i], &dqs, &dws) })
	tiles := rowTiles(l, gradQueries)
	d.indexEach(len(tiles), func(w *indexScratch, i int) { g.keyTile(w, tiles[i], &dks) })
}

// indexGrad is one call of IndexBackward.
type indexGrad struct {
	d                 *Device
	shape             kernels.Index
	c                 float32
	lists             [][]int32 // by row
	bf16              bool
	q, k, weights, ds matrix
	queries           kernels.Tensor
	keys              kernels.KV
}

// row writes dq and dweights of one row.
func (g *indexGrad) row(w *indexScratch, r seqRow, dq, dweights *matrix) {
	x, list := g.shape, g.lists[r.at()]
	n := len(list)
	g.d.indexDots(w, g.q, g.k, r, list, x)
	ds, weights, dws := g.ds.load(r.at(), nil)[:n], g.weights.load(r.at(), nil), dweights.load(r.at(), nil)
	w.p = sized(w.p, n)
	for h, weight := range weights {
		s := w.s[h*n:][:n]
		for e, v := range s {
			w.p[e] = max(v, 0)
		}
		dws[h] = g.d.vec.TreeDot(ds, w.p)
		for e, v := range s {
			s[e] = g.through(v, ds[e], weight)
		}
		g.round(s)
	}
	w.dq = sized(w.dq, x.Heads*x.Dim)
	clear(w.dq)
	g.d.mm.Tile(&w.mm, w.dq, x.Dim, x.Heads, x.Dim, n, gemm.View{X: w.s, RS: n, CS: 1}, gemm.View{X: w.k, RS: x.Dim,
		CS: 1})
	dq.storeHead(r.at(), 0, w.dq)
}

// through is dr, the gradient by a head's product r = dot*c times c.
func (g *indexGrad) through(r, ds, weight float32) float32 {
	if r > 0 {
		return float32(ds*weight) * g.c
	}
	return 0
}

func (g *indexGrad) round(x []float32) {
	if g.bf16 {
		roundToBF16(x)
	}
}

// keyTile writes dk of the keys at positions of a tile, from the queries at and after them.
func (g *indexGrad) keyTile(w *indexScratch, t rowTile, dk *matrix) {
	x, dim, n := g.shape, g.shape.Dim, t.to-t.from
	w.q, w.k, w.s, w.dk = sized(w.q, gradQueries*dim), sized(w.k, n*dim), sized(w.s, gradQueries*n), sized(w.dk, n*dim)
	clear(w.dk)
	k := g.d.heads(w.k, g.keys.K, g.keys, t.span, 0, dim, t.from, t.to)
	for h := range x.Heads {
		// tiles begin at multiples of gradQueries: earlier ones see none of the keys
		for from := t.from; from < t.span.Rows; from += gradQueries {
			to := min(from+gradQueries, t.span.Rows)
			q := g.d.heads(w.q, g.queries, g.keys, t.span, h, dim, from, to)
			clear(w.s[:(to-from)*n])
			g.d.mm.Tile(&w.mm, w.s, n, to-from, n, dim, q, transposed(k))
			for i := range to - from {
				g.keyRow(w.s[i*n:][:n], seqRow{t.span, from + i}, t.from, h)
			}
			g.d.mm.Tile(&w.mm, w.dk, dim, n, dim, to-from, gemm.View{X: w.s, RS: 1, CS: n}, q)
		}
	}
	for j := range n {
		dk.storeHead(t.span.Row+t.from+j, 0, w.dk[j*dim:][:dim])
	}
}

// keyRow replaces the dots of a query of head h with keys at positions from, from+1, ... by dr, +0 for keys that are
// not in the query's list.
func (g *indexGrad) keyRow(s []float32, r seqRow, from, h int) {
	list := g.lists[r.at()]
	lo, hi := within(list, from, from+len(s))
	ds, weight, next := g.ds.load(r.at(), nil), g.weights.load(r.at(), nil)[h], 0
	for e := lo; e < hi; e++ {
		at := int(list[e]) - from
		clear(s[next:at])
		s[at] = g.through(float32(s[at]*g.c), ds[e], weight)
		next = at + 1
	}
	clear(s[next:])
	g.round(s)
}
