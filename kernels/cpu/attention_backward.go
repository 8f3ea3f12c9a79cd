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
//	dv_j  = the same of p_ij, dout_i
//
// With BF16 storage p and ds are rounded to bf16 as operands of the last three dots (ds comes from the p that is not
// rounded). DotTC16 takes k-steps of 16 keys from position 0 for dq. For dk and dv it takes k-steps of 16 queries from
// position 0, restarting at each head; the chain continues from head to head. Pairs that are not visible count as p =
// ds = +0, which changes at most the sign of a zero, and "+ 0" clears that sign. So the bits depend neither on threads
// nor on the other sequences of the batch.
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
	op := d.newAttentionGrad(dout, lse, q, kv, selected, l, a)
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
}

func (d *Device) newAttentionGrad(dout, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) *attentionGrad {
	if kv.PageRows != 0 {
		panic("cpu: the backward of attention has no pages")
	}
	checkAttention(kv, l, a, []kernels.Tensor{q}, []kernels.Tensor{dout})
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

// gradScratch holds one KV head of a sequence of T rows in fp32.
type gradScratch struct {
	mm           gemm.Scratch
	k, v, dk, dv []float32   // [T, HeadDim], v and dv [T, ValueDim]; k and v only where the tensors cannot be viewed
	q, dout, out []float32   // [gradQueries, HeadDim], dout and out [gradQueries, ValueDim], likewise
	dq           []float32   // [gradQueries, dim]
	sum, lse     []float32   // [gradQueries]: D_i and lse_i
	p, ds        []float32   // [gradQueries, keys of a strip]
	listed       [][]float32 // [gradQueries][keys of its list]: ds
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
	dq, dk, dv := op.d.matrix(op.dq), op.d.matrix(op.dk), op.d.matrix(op.dv)
	for head := kvHead * op.group; head < (kvHead+1)*op.group; head++ {
		for from := 0; from < n; from += gradQueries {
			t := op.load(s, head, from, min(from+gradQueries, n), w)
			op.queries(t, w, k, v, 0, t.to)
			for i := range t.to - from {
				dq.storeHead(t.row+i, head, w.dq[i*dim:][:dim])
			}
		}
	}
	for j := range n {
		dk.storeHead(s.Row+j, kvHead, w.dk[j*dim:][:dim])
		dv.storeHead(s.Row+j, kvHead, w.dv[j*values:][:values])
	}
}

// gradTile is queries [from, to) of one head: q [to-from, HeadDim] and dout [to-from, ValueDim].
type gradTile struct {
	from, to int
	row      int // of the batch
	q, dout  gemm.View
}

// load prepares a tile, its D_i and lse_i.
func (op *attentionGrad) load(s *kernels.Span, head, from, to int, w *gradScratch) gradTile {
	dim, values, n := op.shape.HeadDim, op.shape.Values(), to-from
	w.q, w.dout, w.out, w.dq = sized(w.q, n*dim), sized(w.dout, n*values), sized(w.out, n*values), sized(w.dq, n*dim)
	w.sum, w.lse = sized(w.sum, n), sized(w.lse, n)
	clear(w.dq)
	t := gradTile{from: from, to: to, row: s.Row + from - s.Pos}
	own := &kernels.Span{Row: s.Row - s.Pos} // the rows of queries
	t.q = op.d.heads(w.q, op.q, op.kv, own, head, dim, from, to)
	t.dout = op.d.heads(w.dout, op.dout, op.kv, own, head, values, from, to)
	lse := op.lse.F32s()
	for i := range n {
		w.lse[i] = lse[(t.row+i)*op.lse.Stride+head]
	}
	if !op.delta.IsNil() {
		delta := op.delta.F32s()
		for i := range n {
			w.sum[i] = delta[(t.row+i)*op.delta.Stride+head]
		}
		return t
	}
	out := op.d.heads(w.out, op.out, op.kv, own, head, values, from, to)
	for i := range n {
		w.sum[i] = op.d.vec.TreeDot(t.dout.X[i*t.dout.RS:][:values], out.X[i*out.RS:][:values])
	}
	return t
}

// queries takes a tile with the keys of positions [first, end), ascending in strips. It adds to their dk and dv, where
// those are wanted, and computes the tile's dq. k, v, and the sums of dk and dv begin with position first.
func (op *attentionGrad) queries(t gradTile, w *gradScratch, k, v gemm.View, first, end int) {
	dim, values, mm, m := op.shape.HeadDim, op.shape.Values(), op.d.mm, t.to-t.from
	w.listed = sized(w.listed, m)
	for i := range w.listed {
		w.listed[i] = w.listed[i][:0]
		if first > 0 && !op.selected.IsNil() { // entries of a list that come before
			n, _ := slices.BinarySearch(listOf(op.selected, t.row+i), int32(first))
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
		p, ds := gemm.View{X: w.p, RS: n, CS: 1}, gemm.View{X: w.ds, RS: n, CS: 1}
		if !op.dk.IsNil() {
			mm.Tile(&w.mm, w.dv[at*values:], values, n, values, m, transposed(p), t.dout)
			mm.Tile(&w.mm, w.dk[at*dim:], dim, n, dim, m, transposed(ds), t.q)
		}
		if op.selected.IsNil() && !op.dq.IsNil() {
			mm.Tile(&w.mm, w.dq, dim, m, dim, n, ds, kn)
		}
	}
	if !op.selected.IsNil() && !op.dq.IsNil() {
		op.alongList(t, w, k)
	}
}

// scores replaces dot(q, k) and dot(dout, v) of n keys from position from on by p and ds.
func (op *attentionGrad) scores(t gradTile, w *gradScratch, from, n int) {
	for i := range t.to - t.from {
		p, ds := w.p[i*n:][:n], w.ds[i*n:][:n]
		lo, hi := op.visible(t.from+i, from, from+n)
		clear(p[:lo])
		clear(ds[:lo])
		clear(p[hi:])
		clear(ds[hi:])
		if lo < hi {
			op.gradients(p[lo:hi], ds[lo:hi], w.lse[i], w.sum[i])
		}
		if !op.selected.IsNil() {
			w.listed[i] = keep(p, ds, from, listOf(op.selected, t.row+i), w.listed[i])
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

// AttentionQueryGrad is dq of AttentionBackward. A unit of work is a tile of queries of a head.
func (d *Device) AttentionQueryGrad(dq, dout, delta, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	op := d.newAttentionGrad(dout, lse, q, kv, selected, l, a)
	op.dq, op.delta = dq, delta
	units, dim, to := gradUnits(l, a.Heads, gradQueries), a.HeadDim, d.matrix(dq)
	d.pool.each(len(units), 1, func(_, from, end int) {
		w := gradScratches.Get().(*gradScratch)
		defer gradScratches.Put(w)
		for _, u := range units[from:end] {
			t := op.load(u.span, u.head, u.from, u.to, w)
			k, v := op.keys(u.span, u.head/op.group, 0, u.to, w)
			op.queries(t, w, k, v, 0, t.to)
			for i := range t.to - t.from {
				to.storeHead(t.row+i, u.head, w.dq[i*dim:][:dim])
			}
		}
	})
}

// AttentionKeyGrad is dk and dv of AttentionBackward. A unit of work is keys of a head: every chain stays in one
// goroutine.
func (d *Device) AttentionKeyGrad(dk, dv, sums, dout, delta, lse, q kernels.Tensor, kv kernels.KV,
	selected kernels.Tensor, l *kernels.Layout, a kernels.Attn, part kernels.KeyPart) {
	mustBeWhole(l)
	op := d.newAttentionGrad(dout, lse, q, kv, selected, l, a)
	op.dk, op.dv, op.delta = dk, dv, delta
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
		first, end := max(part.From-s.Row, 0), min(part.To-s.Row, s.Rows)
		for from := first; from < end; from += stripKeys {
			for h := range heads {
				units = append(units, gradUnit{s, h, from, min(from+stripKeys, end)})
			}
		}
	}
	return units
}

// keyUnit continues the chains of a unit's keys by the heads of its group, in each by queries ascending. Tiles of
// queries begin at multiples from position 0, as k-steps do.
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
	for head := u.head * op.group; head < (u.head+1)*op.group; head++ {
		for from := u.from / gradQueries * gradQueries; from < u.span.Rows; from += gradQueries {
			t := op.load(u.span, head, from, min(from+gradQueries, u.span.Rows), w)
			op.queries(t, w, k, v, u.from, u.to)
		}
	}
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
