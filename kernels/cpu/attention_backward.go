package cpu

import (
	"cmp"
	"slices"
	"sync"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

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
	if kv.PageRows != 0 {
		panic("cpu: the backward of attention has no pages")
	}
	fwd := attention{d: d, out: out, lse: lse, q: q, kv: kv, shape: a, group: a.Heads / a.KVHeads, c: scoreScale(a)}
	op := &attentionGrad{attention: fwd, dq: dq, dk: dk, dv: dv, dout: dout, selected: selected}
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
	selected         kernels.Tensor // nil: every key up to the query's position
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
	w.k, w.v, w.dk, w.dv = sized(w.k, n*dim), sized(w.v, n*values), sized(w.dk, n*dim), sized(w.dv, n*values)
	clear(w.dk)
	clear(w.dv)
	k := op.d.heads(w.k, op.kv.K, op.kv, s, kvHead, dim, 0, n)
	v := op.d.heads(w.v, op.kv.V, op.kv, s, kvHead, values, 0, n)
	dq, dk, dv := op.d.matrix(op.dq), op.d.matrix(op.dk), op.d.matrix(op.dv)
	for head := kvHead * op.group; head < (kvHead+1)*op.group; head++ {
		for from := 0; from < n; from += gradQueries {
			t := op.load(s, head, from, min(from+gradQueries, n), w)
			op.queries(t, w, k, v)
			for i := range t.to - from {
				dq.storeHead(s.Row+from+i, head, w.dq[i*dim:][:dim])
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
	t := gradTile{from: from, to: to, row: s.Row + from}
	t.q = op.d.heads(w.q, op.q, op.kv, s, head, dim, from, to)
	t.dout = op.d.heads(w.dout, op.dout, op.kv, s, head, values, from, to)
	out, lse := op.d.heads(w.out, op.out, op.kv, s, head, values, from, to), op.lse.F32s()
	for i := range n {
		w.sum[i] = op.d.vec.TreeDot(t.dout.X[i*t.dout.RS:][:values], out.X[i*out.RS:][:values])
		w.lse[i] = lse[(s.Row+from+i)*op.lse.Stride+head]
	}
	return t
}

// queries adds a tile's part to dk [T, HeadDim] and dv [T, ValueDim] and computes its dq, keys ascending in strips.
func (op *attentionGrad) queries(t gradTile, w *gradScratch, k, v gemm.View) {
	dim, values, mm, m := op.shape.HeadDim, op.shape.Values(), op.d.mm, t.to-t.from
	w.listed = sized(w.listed, m)
	for i := range w.listed {
		w.listed[i] = w.listed[i][:0]
	}
	for from := op.firstKey(t.from) &^ 15; from < t.to; from += stripKeys {
		n := min(stripKeys, t.to-from)
		kn, vn := gemm.View{X: k.X[from*k.RS:], RS: k.RS, CS: 1}, gemm.View{X: v.X[from*v.RS:], RS: v.RS, CS: 1}
		w.p, w.ds = sized(w.p, m*n), sized(w.ds, m*n)
		clear(w.p)
		clear(w.ds)
		mm.Tile(&w.mm, w.p, n, m, n, dim, t.q, transposed(kn))
		mm.Tile(&w.mm, w.ds, n, m, n, values, t.dout, transposed(vn))
		op.scores(t, w, from, n)
		p, ds := gemm.View{X: w.p, RS: n, CS: 1}, gemm.View{X: w.ds, RS: n, CS: 1}
		mm.Tile(&w.mm, w.dv[from*values:], values, n, values, m, transposed(p), t.dout)
		mm.Tile(&w.mm, w.dk[from*dim:], dim, n, dim, m, transposed(ds), t.q)
		if op.selected.IsNil() {
			mm.Tile(&w.mm, w.dq, dim, m, dim, n, ds, kn)
		}
	}
	if !op.selected.IsNil() {
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
