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
//	D_i   = tree over the head dim of dout_i*out_i
//	p_ij  = Exp2(min(dot(q_i, k_j)*c - lse_i, 0))
//	dp_ij = dot(dout_i, v_j)                           both dots over the head dim from +0
//	ds_ij = (p_ij*(dp_ij - D_i))*float32(Scale)        every operation rounded
//	dq_i  = round(dot over keys ascending of ds_ij, k_j  + 0)
//	dk_j  = round(dot over heads of the group ascending, in each over queries ascending, of ds_ij, q_i  + 0)
//	dv_j  = the same of p_ij, dout_i
//
// With BF16 storage p and ds are rounded to bf16 as operands of the last three dots (ds comes from the p that is not rounded).
// DotTC16 takes steps of 16 keys from position 0 for dq and of 16 queries from position 0, anew for each head, for dk and dv; the
// chain runs on from head to head. Pairs that are not visible count as p = ds = +0: no-ops but for the sign of a zero, which
// "+ 0" clears. So the bits depend neither on threads nor on what else is packed in the batch.
//
// A piece of work is one KV head of one sequence: nothing is computed twice and every chain lies in one goroutine.
func (d *Device) AttentionBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	checkAttention(kv, l, a, q, out, dout, dq)
	if kv.PageRows != 0 {
		panic("cpu: the backward of attention has no pages")
	}
	fwd := attention{d: d, out: out, lse: lse, q: q, kv: kv, shape: a, group: a.Heads / a.KVHeads, c: scoreScale(a)}
	op := &attentionGrad{attention: fwd, dq: dq, dk: dk, dv: dv, dout: dout}
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
}

const gradQueries = 64 // queries of a backward tile, a multiple of the 16 of DotTC16

// gradScratch holds one KV head of a sequence of T rows in fp32.
type gradScratch struct {
	mm             gemm.Scratch
	k, v, dk, dv   []float32 // [T, dim]
	q, dout, dq    []float32 // [gradQueries, dim]
	sum, lse       []float32 // [gradQueries]: D_i and lse_i
	out            []float32 // [dim]
	p, ds          []float32 // [gradQueries, keys of a strip]
	queries, first int       // of the present tile: how many, and the position of the first
}

var gradScratches = sync.Pool{New: func() any { return new(gradScratch) }}

// sequence writes dk and dv of one KV head of a span and dq of the heads of its group.
func (op *attentionGrad) sequence(s *kernels.Span, kvHead int, w *gradScratch) {
	dim, n := op.shape.HeadDim, s.Rows
	w.k, w.v, w.dk, w.dv = sized(w.k, n*dim), sized(w.v, n*dim), sized(w.dk, n*dim), sized(w.dv, n*dim)
	clear(w.dk)
	clear(w.dv)
	k := op.d.cached(w.k, op.kv.K, op.kv, s, kvHead, dim, 0, n)
	v := op.d.cached(w.v, op.kv.V, op.kv, s, kvHead, dim, 0, n)
	for head := kvHead * op.group; head < (kvHead+1)*op.group; head++ {
		for from := 0; from < n; from += gradQueries {
			op.load(s, head, from, min(from+gradQueries, n), w)
			op.queries(w, k, v)
			for i := range w.queries {
				op.d.storeHead(op.dq, s.Row+from+i, head, w.dq[i*dim:][:dim])
			}
		}
	}
	for j := range n {
		op.d.storeHead(op.dk, s.Row+j, kvHead, w.dk[j*dim:][:dim])
		op.d.storeHead(op.dv, s.Row+j, kvHead, w.dv[j*dim:][:dim])
	}
}

// load prepares queries [from, to) of a head.
func (op *attentionGrad) load(s *kernels.Span, head, from, to int, w *gradScratch) {
	dim, n := op.shape.HeadDim, to-from
	w.first, w.queries = from, n
	w.q, w.dout, w.dq, w.out = sized(w.q, n*dim), sized(w.dout, n*dim), sized(w.dq, n*dim), sized(w.out, dim)
	w.sum, w.lse = sized(w.sum, n), sized(w.lse, n)
	clear(w.dq)
	for i := range n {
		row := s.Row + from + i
		op.d.loadHead(w.q[i*dim:][:dim], op.q, row, head)
		op.d.loadHead(w.dout[i*dim:][:dim], op.dout, row, head)
		op.d.loadHead(w.out, op.out, row, head)
		w.sum[i] = op.d.vec.TreeDot(w.dout[i*dim:][:dim], w.out)
		w.lse[i] = op.lse.F32s()[row*op.lse.Stride+head]
	}
}

// queries adds the loaded queries' part to dk and dv [T, dim] and computes their dq, keys ascending in strips.
func (op *attentionGrad) queries(w *gradScratch, k, v gemm.View) {
	dim, end := op.shape.HeadDim, w.first+w.queries
	q, dout := gemm.View{X: w.q, RS: dim, CS: 1}, gemm.View{X: w.dout, RS: dim, CS: 1}
	for from := op.firstKey(w.first) &^ 15; from < end; from += stripKeys {
		n := min(stripKeys, end-from)
		kn, vn := gemm.View{X: k.X[from*k.RS:], RS: k.RS, CS: 1}, gemm.View{X: v.X[from*v.RS:], RS: v.RS, CS: 1}
		w.p, w.ds = sized(w.p, w.queries*n), sized(w.ds, w.queries*n)
		clear(w.p)
		clear(w.ds)
		op.d.mm.Tile(&w.mm, w.p, n, w.queries, n, dim, q, transposed(kn))
		op.d.mm.Tile(&w.mm, w.ds, n, w.queries, n, dim, dout, transposed(vn))
		op.scores(w, from, n)
		p, ds := gemm.View{X: w.p, RS: n, CS: 1}, gemm.View{X: w.ds, RS: n, CS: 1}
		op.d.mm.Tile(&w.mm, w.dv[from*dim:], dim, n, dim, w.queries, transposed(p), dout)
		op.d.mm.Tile(&w.mm, w.dk[from*dim:], dim, n, dim, w.queries, transposed(ds), q)
		op.d.mm.Tile(&w.mm, w.dq, dim, w.queries, dim, n, ds, kn)
	}
}

// scores turns dot(q, k) and dot(dout, v) of n keys from one on into p and ds, in place.
func (op *attentionGrad) scores(w *gradScratch, from, n int) {
	for i := range w.queries {
		p, ds := w.p[i*n:][:n], w.ds[i*n:][:n]
		lo, hi := op.visible(w.first+i, from, from+n)
		clear(p[:lo])
		clear(ds[:lo])
		clear(p[hi:])
		clear(ds[hi:])
		if lo < hi {
			op.gradients(p[lo:hi], ds[lo:hi], w.lse[i], w.sum[i])
		}
	}
}
