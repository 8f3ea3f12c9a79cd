package cpu

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

var _ kernels.DividedAttention = (*Device)(nil)

// AttentionBackward, for query i of head h and key j visible to it (positions of one sequence, c as in Attention):
//
//	D_i   = tree over the columns of dout_i*out_i
//	p_ij  = Exp2(min(dot(q_i, k_j)*c - lse_i, 0))
//	dp_ij = dot(dout_i, v_j)                           both dots over the columns of a head from +0
//	ds_ij = (p_ij*(dp_ij - D_i))*float32(Scale)        every operation rounded
//	dq_i  = round(dot over keys ascending of ds_ij, k_j  + 0)
//	dk_j  = round(dot over heads of the group ascending, in each over queries ascending, of ds_ij, q_i  + 0)
//	        with Latent: dot over queries ascending, in each over heads ascending
//	dv_j  = the same of p_ij, dout_i
//
// With BF16 storage p and ds are rounded to bf16 as operands of the last three dots (ds comes from the p that is not
// rounded). DotTC16 takes k-steps of 16 keys from position 0 for dq. For dk and dv it takes k-steps of 16 queries from
// position 0, restarting at each head; the chain continues from head to head. With Latent it takes k-steps of 16 heads
// from the first, restarting at each query; the chain continues from query to query. Pairs that are not visible count
// as p = ds = +0, which changes at most the sign of a zero, and "+ 0" clears that sign. So a query that does not see a
// key adds nothing, and the bits depend neither on threads nor on the other sequences of the batch.
//
// Queries come first with Latent because a key that an indexer chooses is read by few queries, but by all their heads:
// the heads of one query are a product without masked pairs.
//
// A unit of work is one KV head of one sequence: nothing is computed twice, and every chain stays in one goroutine.
func (d *Device) AttentionBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout,
	a kernels.Attn) {
	checkAttention(kv, l, a, []kernels.Tensor{q, dq}, []kernels.Tensor{out, dout})
	d.attentionBackward(dq, dk, dv, dout, out, lse, q, kv, kernels.Tensor{}, l, a)
}

// attentionBackward is AttentionBackward, or SparseAttendBackward where selected is not nil.
func (d *Device) attentionBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	op := d.newAttentionGrad(dout, lse, q, kv, selected, a)
	op.out, op.dq, op.dk, op.dv = out, dq, dk, dv
	mustBeWhole(l)
	spans := slices.Clone(l.Spans)
	slices.SortStableFunc(spans, func(x, y kernels.Span) int { return cmp.Compare(y.Rows, x.Rows) }) // long ones first
	d.pool.each(len(spans)*a.KVHeads, 1, func(_, from, to int) {
		w := gradScratches.Get().(*gradScratch)
		defer gradScratches.Put(w)
		for i := from; i < to; i++ {
			op.sequence(&spans[i/a.KVHeads], i%a.KVHeads, w)
		}
	})
}

// attentionGrad is one call of the backward.
type attentionGrad struct {
	attention
	dq, dk, dv, dout kernels.Tensor
	delta            kernels.Tensor // D_i; nil: it comes from out
	selected         kernels.Tensor // nil: every key up to the query's position
	first            int            // row of the layout that is row 0 of queries, their gradients and lists
}

func (d *Device) newAttentionGrad(dout, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor,
	a kernels.Attn) *attentionGrad {
	if kv.PageRows != 0 {
		panic("cpu: the backward of attention has no pages")
	}
	return &attentionGrad{attention: attention{d: d, lse: lse, q: q, kv: kv, shape: a, group: a.Heads / a.KVHeads,
		c: scoreScale(a)}, dout: dout, selected: selected}
}

// mustBeWhole panics where a layout has parts of sequences.
func mustBeWhole(l *kernels.Layout) {
	if slices.ContainsFunc(l.Spans, func(s kernels.Span) bool { return s.Pos != 0 || s.Shift != 0 }) {
		panic("cpu: gradients of keys by the queries of a part of a sequence")
	}
}

const gradQueries = 64 // queries of a backward tile, a multiple of the 16 of DotTC16

// gradScratch holds one KV head of a sequence of T rows in fp32. Rows are those of a tile.
type gradScratch struct {
	mm           gemm.Scratch
	k, v, dk, dv []float32   // [T, HeadDim], v and dv [T, ValueDim]; k and v only where the tensors cannot be viewed
	q, dout, out []float32   // [rows, HeadDim], dout and out [rows, ValueDim], likewise
	dq           []float32   // [rows, dim]
	sum, lse     []float32   // [rows]: D_i and lse_i
	p, ds        []float32   // [rows, keys of a strip]
	listed       [][]float32 // [rows][keys of its list]: ds
	gathered     []float32   // [keys of a list, HeadDim]
}

var gradScratches = sync.Pool{New: func() any { return new(gradScratch) }}

// sequence writes dk and dv of one KV head of a span and dq of the heads of its group.
func (op *attentionGrad) sequence(s *kernels.Span, kvHead int, w *gradScratch) {
	dim, values, n := op.shape.HeadDim, op.shape.Values(), s.Rows
	w.dk, w.dv = sized(w.dk, n*dim), sized(w.dv, n*values)
	clear(w.dk)
	clear(w.dv)
	k, v := op.keys(s, kvHead, 0, n, w)
	op.tiles(s, kvHead*op.group, (kvHead+1)*op.group, 0, n, func(t gradTile) {
		op.load(&t, s, w)
		op.queries(t, w, k, v, 0, t.to)
		op.storeQueries(t, w)
	})
	dk, dv := op.d.matrix(op.dk), op.d.matrix(op.dv)
	for j := range n {
		dk.storeHead(s.Row+j, kvHead, w.dk[j*dim:][:dim])
		dv.storeHead(s.Row+j, kvHead, w.dv[j*values:][:values])
	}
}

// gradTile is queries [from, to) of some heads. Its rows are (query, head), query-major: q [rows, HeadDim] and dout
// [rows, ValueDim].
type gradTile struct {
	from, to    int
	row         int // of the first query, in the tensors of queries
	head, heads int
	q, dout     gemm.View
}

func (t *gradTile) rows() int { return (t.to - t.from) * t.heads }

// tiles visits the tiles of queries [from, to) of heads [head, end) in the order of the chains of dk and dv. Tiles of
// one head begin at multiples of gradQueries from position 0, as k-steps do.
func (op *attentionGrad) tiles(s *kernels.Span, head, end, from, to int, visit func(t gradTile)) {
	heads, each := 1, gradQueries
	if op.shape.Latent {
		heads = end - head
		each = max(1, gradQueries/heads)
	}
	for ; head < end; head += heads {
		for at, next := from, 0; at < to; at = next {
			next = min((at/each+1)*each, to)
			visit(gradTile{from: at, to: next, row: s.Row + at - s.Pos - op.first, head: head, heads: heads})
		}
	}
}

// load prepares a tile, its D_i and lse_i.
func (op *attentionGrad) load(t *gradTile, s *kernels.Span, w *gradScratch) {
	dim, values, n := op.shape.HeadDim, op.shape.Values(), t.rows()
	w.q, w.dout, w.out, w.dq = sized(w.q, n*dim), sized(w.dout, n*values), sized(w.out, n*values), sized(w.dq, n*dim)
	w.sum, w.lse = sized(w.sum, n), sized(w.lse, n)
	clear(w.dq)
	t.q, t.dout = op.rowsOf(w.q, op.q, t, dim), op.rowsOf(w.dout, op.dout, t, values)
	op.copyOfHeads(w.lse, op.lse, t)
	if !op.delta.IsNil() {
		op.copyOfHeads(w.sum, op.delta, t)
		return
	}
	out := op.rowsOf(w.out, op.out, t, values)
	for i := range n {
		w.sum[i] = op.d.vec.TreeDot(t.dout.X[i*t.dout.RS:][:values], out.X[i*out.RS:][:values])
	}
}

// rowsOf is the rows of a tile in a tensor of queries, in buf where they cannot be viewed.
func (op *attentionGrad) rowsOf(buf []float32, x kernels.Tensor, t *gradTile, width int) gemm.View {
	if t.heads == 1 {
		return op.d.heads(buf, x, op.kv, &kernels.Span{Row: t.row}, t.head, width, 0, t.to-t.from)
	}
	m, n := op.d.matrix(x), t.heads*width
	for i := range t.to - t.from {
		m.copyHead(buf[i*n:][:n], t.row+i, t.head/t.heads)
	}
	return gemm.View{X: buf, RS: width, CS: 1}
}

// copyOfHeads fills dst with a tile's numbers of a tensor [T, Heads].
func (op *attentionGrad) copyOfHeads(dst []float32, x kernels.Tensor, t *gradTile) {
	from := x.F32s()
	for i := range t.to - t.from {
		copy(dst[i*t.heads:][:t.heads], from[(t.row+i)*x.Stride+t.head:])
	}
}

// storeQueries writes dq of a tile.
func (op *attentionGrad) storeQueries(t gradTile, w *gradScratch) {
	dq, dim := op.d.matrix(op.dq), op.shape.HeadDim
	for r := range t.rows() {
		dq.storeHead(t.row+r/t.heads, t.head+r%t.heads, w.dq[r*dim:][:dim])
	}
}

// queries takes a tile with the keys of positions [first, end), ascending in strips. It adds to their dk and dv, where
// those are wanted, and computes the tile's dq. k, v, and the sums of dk and dv begin with position first.
func (op *attentionGrad) queries(t gradTile, w *gradScratch, k, v gemm.View, first, end int) {
	dim, values, mm, m := op.shape.HeadDim, op.shape.Values(), op.d.mm, t.rows()
	w.listed = sized(w.listed, m)
	for i := range w.listed {
		w.listed[i] = w.listed[i][:0]
		if first > 0 && !op.selected.IsNil() { // entries of a list that come before
			n, _ := slices.BinarySearch(listOf(op.selected, t.row+i/t.heads), int32(first))
			w.listed[i] = sized(w.listed[i], n)
		}
	}
	for from := max(first, op.firstKey(t.from)&^15); from < min(t.to, end); from += stripKeys {
		n, at := min(stripKeys, t.to-from, end-from), from-first
		kn, vn := gemm.View{X: k.X[at*k.RS:], RS: k.RS, CS: 1}, gemm.View{X: v.X[at*v.RS:], RS: v.RS, CS: 1}
		w.p, w.ds = sized(w.p, m*n), sized(w.ds, m*n)
		clear(w.p)
		clear(w.ds)
		mm.Tile(&w.mm, w.p, n, m, n, dim, t.q, transposed(kn))
		mm.Tile(&w.mm, w.ds, n, m, n, values, t.dout, transposed(vn))
		op.scores(t, w, from, n)
		if !op.dk.IsNil() {
			op.continueKeys(t, w, at, n)
		}
		if op.selected.IsNil() && !op.dq.IsNil() {
			mm.Tile(&w.mm, w.dq, dim, m, dim, n, gemm.View{X: w.ds, RS: n, CS: 1}, kn)
		}
	}
	if !op.selected.IsNil() && !op.dq.IsNil() {
		op.alongList(t, w, k)
	}
}

// continueKeys adds a tile to dk and dv of n keys, whose sums begin with key `at`: by the rows of its head, or by those
// of one query after another.
func (op *attentionGrad) continueKeys(t gradTile, w *gradScratch, at, n int) {
	dim, values, mm, each := op.shape.HeadDim, op.shape.Values(), op.d.mm, t.rows()
	if op.shape.Latent {
		each = t.heads
	}
	for r := 0; r < t.rows(); r += each {
		p, ds := gemm.View{X: w.p[r*n:], RS: 1, CS: n}, gemm.View{X: w.ds[r*n:], RS: 1, CS: n}
		dout, q := t.dout, t.q
		dout.X, q.X = dout.X[r*dout.RS:], q.X[r*q.RS:]
		mm.Tile(&w.mm, w.dv[at*values:], values, n, values, each, p, dout)
		mm.Tile(&w.mm, w.dk[at*dim:], dim, n, dim, each, ds, q)
	}
}

// scores replaces dot(q, k) and dot(dout, v) of n keys from position from on by p and ds.
func (op *attentionGrad) scores(t gradTile, w *gradScratch, from, n int) {
	for i := range t.rows() {
		p, ds := w.p[i*n:][:n], w.ds[i*n:][:n]
		lo, hi := op.visible(t.from+i/t.heads, from, from+n)
		clear(p[:lo])
		clear(ds[:lo])
		clear(p[hi:])
		clear(ds[hi:])
		if lo < hi {
			op.gradients(p[lo:hi], ds[lo:hi], w.lse[i], w.sum[i])
		}
		if !op.selected.IsNil() {
			w.listed[i] = keep(p, ds, from, listOf(op.selected, t.row+i/t.heads), w.listed[i])
		}
	}
}

// AttentionDelta is D_i of AttentionBackward.
func (d *Device) AttentionDelta(delta, dout, out kernels.Tensor, a kernels.Attn) {
	if delta.Cols != a.Heads || dout.Cols != a.Heads*a.Values() || out.Cols != dout.Cols || delta.Rows != dout.Rows {
		panic(fmt.Sprintf("cpu: %s of %s and %s, attention %+v", delta, dout, out, a))
	}
	to, x, y, n := delta.F32s(), d.matrix(dout), d.matrix(out), a.Values()
	d.pool.each(dout.Rows, 16, func(_, from, end int) {
		bufs := make([]float32, 2*dout.Cols)
		for row := from; row < end; row++ {
			g, o := x.load(row, bufs[:dout.Cols]), y.load(row, bufs[dout.Cols:])
			for h := range a.Heads {
				to[row*delta.Stride+h] = d.vec.TreeDot(g[h*n:][:n], o[h*n:][:n])
			}
		}
	})
}

// gradUnit is a head, and positions [from, to) of a span: queries, or keys.
type gradUnit struct {
	span           *kernels.Span
	head, from, to int
}

// gradUnits cuts every span into units of so many positions for each head.
func gradUnits(l *kernels.Layout, heads, each int) (units []gradUnit) {
	for i := range l.Spans {
		s := &l.Spans[i]
		for from := s.Pos; from < s.Pos+s.Rows; from += each {
			for h := range heads {
				units = append(units, gradUnit{s, h, from, min(from+each, s.Pos+s.Rows)})
			}
		}
	}
	return units
}

// AttentionQueryGrad is dq of AttentionBackward. A unit of work is a tile of queries.
func (d *Device) AttentionQueryGrad(dq, dout, delta, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	checkAttention(kv, l, a, []kernels.Tensor{q, dq}, []kernels.Tensor{dout})
	op := d.newAttentionGrad(dout, lse, q, kv, selected, a)
	op.dq, op.delta = dq, delta
	units := gradUnits(l, a.Heads, gradQueries)
	d.pool.each(len(units), 1, func(_, from, end int) {
		w := gradScratches.Get().(*gradScratch)
		defer gradScratches.Put(w)
		for _, u := range units[from:end] {
			k, v := op.keys(u.span, u.head/op.group, 0, u.to, w)
			op.tiles(u.span, u.head, u.head+1, u.from, u.to, func(t gradTile) {
				op.load(&t, u.span, w)
				op.queries(t, w, k, v, 0, t.to)
				op.storeQueries(t, w)
			})
		}
	})
}

// AttentionKeyGrad is dk and dv of AttentionBackward. A unit of work is keys of a head: every chain stays in one
// goroutine.
func (d *Device) AttentionKeyGrad(dk, dv, sums, dout, delta, lse, q kernels.Tensor, kv kernels.KV,
	selected kernels.Tensor, l *kernels.Layout, a kernels.Attn, part kernels.KeyPart) {
	mustBeWhole(l)
	checkAttention(kv, l, a, nil, nil)
	if n := part.To - part.From; q.Rows != n || dout.Rows != n || delta.Rows != n || lse.Rows != n ||
		!selected.IsNil() && selected.Rows != n || !a.Latent && (n != l.Rows() || !part.Begins || !part.Ends) {
		panic(fmt.Sprintf("cpu: keys of part %+v by queries %s, gradients %s, lists %s, attention %+v", part, q, dout,
			selected, a))
	}
	op := d.newAttentionGrad(dout, lse, q, kv, selected, a)
	op.dk, op.dv, op.delta, op.first = dk, dv, delta, part.From
	units := keyUnits(l, a.KVHeads, part)
	d.pool.each(len(units), 1, func(_, from, end int) {
		w := gradScratches.Get().(*gradScratch)
		defer gradScratches.Put(w)
		for _, u := range units[from:end] {
			op.keyUnit(u, sums, part, w)
		}
	})
}

// keyUnits is those of the part's keys.
func keyUnits(l *kernels.Layout, heads int, part kernels.KeyPart) (units []gradUnit) {
	for i := range l.Spans {
		s := &l.Spans[i]
		for _, keys := range part.Keys {
			first, end := max(keys[0]-s.Row, 0), min(keys[1]-s.Row, s.Rows)
			for from := first; from < end; from += stripKeys {
				for h := range heads {
					units = append(units, gradUnit{s, h, from, min(from+stripKeys, end)})
				}
			}
		}
	}
	return units
}

// keyUnit continues the chains of a unit's keys by the part's queries.
func (op *attentionGrad) keyUnit(u gradUnit, sums kernels.Tensor, part kernels.KeyPart, w *gradScratch) {
	dim, values, n := op.shape.HeadDim, op.shape.Values(), u.to-u.from
	w.dk, w.dv = sized(w.dk, n*dim), sized(w.dv, n*values)
	chain := func(i int) (ofV, ofK []float32) {
		row := sums.F32s()[(u.span.Row+u.from+i)*sums.Stride+u.head*(dim+values):][:dim+values]
		return row[:values], row[values:]
	}
	clear(w.dk)
	clear(w.dv)
	for i := 0; i < n && !part.Begins; i++ {
		ofV, ofK := chain(i)
		copy(w.dv[i*values:], ofV)
		copy(w.dk[i*dim:], ofK)
	}
	k, v := op.keys(u.span, u.head, u.from, u.to, w)
	first, end := max(u.from, part.From-u.span.Row), min(u.span.Rows, part.To-u.span.Row)
	if !op.shape.Latent { // steps begin at position 0
		first = first / gradQueries * gradQueries
	}
	op.tiles(u.span, u.head*op.group, (u.head+1)*op.group, first, end, func(t gradTile) {
		op.load(&t, u.span, w)
		op.queries(t, w, k, v, u.from, u.to)
	})
	dk, dv := op.d.matrix(op.dk), op.d.matrix(op.dv)
	for i := range n {
		row, ofK, ofV := u.span.Row+u.from+i, w.dk[i*dim:][:dim], w.dv[i*values:][:values]
		if part.Ends {
			dk.storeHead(row, u.head, ofK)
			dv.storeHead(row, u.head, ofV)
			continue
		}
		sumV, sumK := chain(i)
		copy(sumV, ofV)
		copy(sumK, ofK)
	}
}

// keys is one head of keys and values at positions [from, to) of a span.
func (op *attentionGrad) keys(s *kernels.Span, kvHead, from, to int, w *gradScratch) (k, v gemm.View) {
	dim, values, n := op.shape.HeadDim, op.shape.Values(), to-from
	w.k, w.v = sized(w.k, n*dim), sized(w.v, n*values)
	return op.d.heads(w.k, op.kv.K, op.kv, s, kvHead, dim, from, to),
		op.d.heads(w.v, op.kv.V, op.kv, s, kvHead, values, from, to)
}
