package cpu

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// Attention is rule 2 of the definition.
//
// The query at position i of head h reads KV head h / (Heads/KVHeads). Key j is visible to it iff j <= i and (Window ==
// 0 or j > i-Window). c = float32(Scale*log2e), the product taken in float64 and rounded once. For one query row q:
//
//	keys come in blocks of KeyBlock from position 0, blocks in splits of KeySplit keys from position 0, all ascending;
//	at the start of a split: m = -Inf, l = +0, o = +0
//	a block with a visible key (one without is skipped):
//	  u_j  = dot(q, k_j) * c                        the dot over the head dim from +0
//	  m'   = max(m, max of visible u_j),  a = Exp2(m - m')
//	  p_j  = Exp2(u_j - m') for visible keys, +0 for masked ones and up to KeyBlock
//	  l    = l*a + tree(p)                          tree over KeyBlock values: halving KeyBlock/2 ... 1; mul, then add
//	  o_d = dot over the block's j ascending of p_j, v_jd, started from float32(o_d*a); with BF16 storage this p_j is
//	  rounded to bf16
//	  m    = m'
//	splits are merged ascending into (m, l, o), from (-Inf, +0, +0); one without a visible key is skipped:
//	  m'   = max(m, m_s);  l = l*Exp2(m-m') + l_s*Exp2(m_s-m');  o_d likewise, products rounded, then added;  m = m'
//	out_d  = round(o_d*(1/l) + 0);  lse = m + Ln(l)*log2e
//
// DotTC16 takes the keys of a block in steps of 16 from the block's start. The bits of a row depend on its own query
// and on the keys and values visible to it, if all keys and values of its blocks are finite: a masked key has p = +0,
// which changes at most the sign of a zero, and the last "+ 0" clears that sign. So a training tile, any cut of a
// prefill and a decode row give the same bits.
//
// Rows of a tile are (query, head of the group), query-major: a group shares the keys of its KV head.
func (d *Device) Attention(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	checkAttention(kv, l, a, []kernels.Tensor{q}, []kernels.Tensor{out})
	op := d.newAttention(out, lse, q, kv, a)
	op.run(op.tiles(l))
}

func (op *attention) run(tiles []queryTile) {
	op.d.pool.each(len(tiles), 1, func(_, from, to int) {
		w := attentionScratches.Get().(*attentionScratch)
		defer attentionScratches.Put(w)
		for _, t := range tiles[from:to] {
			op.tile(t, w)
		}
	})
}

// attention is one call of the operation.
type attention struct {
	d           *Device
	out, lse, q kernels.Tensor
	kv          kernels.KV
	shape       kernels.Attn
	group       int     // query heads that share a KV head
	c           float32 // of scores, to units of log2

	keys, values *codedHeads // of pages in codes; nil: kv has numbers
}

func (d *Device) newAttention(out, lse, q kernels.Tensor, kv kernels.KV, a kernels.Attn) *attention {
	op := &attention{d: d, out: out, lse: lse, q: q, kv: kv, shape: a, group: a.Heads / a.KVHeads, c: scoreScale(a)}
	if c := kv.Codes; c != nil {
		op.keys = d.codedHeads(kv, kv.K, c.KScales, c.Rotated)
		op.values = d.codedHeads(kv, kv.V, c.VScales, kernels.Tensor{})
	}
	return op
}

// queryTile is a piece of work: queries at positions [from, to) of a span, all heads of one KV head.
type queryTile struct {
	span     *kernels.Span
	kvHead   int
	from, to int

	// With a list of keys (sparse.go) positions are its indices, and its entries are positions of the sequence of keys.
	list []int32
	keys *kernels.Span
}

// Sizes of the work. They do not change bits.
const (
	tileRows  = 128 // rows of a query tile: enough to pay for packing the keys
	stripKeys = 256 // keys whose scores are computed at once
)

type attentionScratch struct {
	mm           gemm.Scratch
	q, k, v, s   []float32 // [rows, HeadDim], [stripKeys, HeadDim], [stripKeys, ValueDim], [rows, stripKeys]
	decay        []float32 // [rows]
	seen         []uint64  // [rows]: visible keys of the block
	split, total online
}

var attentionScratches = sync.Pool{New: func() any { return new(attentionScratch) }}

func scoreScale(a kernels.Attn) float32 { return float32(a.Scale * math.Log2E) }

// checkAttention panics if shapes or types do not fit; q are queries or their gradients, out outputs or theirs.
func checkAttention(kv kernels.KV, l *kernels.Layout, a kernels.Attn, q, out []kernels.Tensor) {
	keys := a.KVHeads * a.HeadDim
	if kv.Codes != nil {
		keys -= kv.Codes.Rotated.Cols
	}
	bad := a.KVHeads <= 0 || a.Heads%a.KVHeads != 0 || kv.K.Cols != keys || kv.V.Cols != a.KVHeads*a.Values() ||
		kv.V.DType != kv.K.DType || a.Latent && (a.KVHeads != 1 || a.Window != 0)
	for _, t := range slices.Concat(q, out) {
		bad = bad || t.Rows < l.Rows() || t.DType != kv.Type()
	}
	for _, t := range q {
		bad = bad || t.Cols != a.Heads*a.HeadDim
	}
	for _, t := range out {
		bad = bad || t.Cols != a.Heads*a.Values()
	}
	for _, s := range l.Spans {
		bad = bad || kv.PageRows == 0 && (s.KeyRow() < 0 || s.KeyRow()+s.Pos+s.Rows > kv.K.Rows)
	}
	if bad {
		panic(fmt.Sprintf("cpu: attention %+v of queries %v to %v on keys %s and values %s, pages of %d rows", a, q,
			out, kv.K, kv.V, kv.PageRows))
	}
}

// tiles cuts the spans at multiples of a number of positions. The last tiles of a span see most keys and come first.
func (op *attention) tiles(l *kernels.Layout) []queryTile {
	var tiles []queryTile
	n := max(1, tileRows/op.group)
	for i := range l.Spans {
		s := &l.Spans[i]
		for to := s.Pos + s.Rows; to > s.Pos; {
			from := max(s.Pos, (to-1)/n*n)
			for h := range op.shape.KVHeads {
				tiles = append(tiles, queryTile{span: s, kvHead: h, from: from, to: to})
			}
			to = from
		}
	}
	return tiles
}

// tile computes the rows of one query tile.
func (op *attention) tile(t queryTile, w *attentionScratch) {
	def, rows := op.d.def, (t.to-t.from)*op.group
	op.load(t, w)
	w.split.reset(rows, op.shape.Values())
	merged := false
	for x := op.firstKey(t.from) / def.KeyBlock * def.KeyBlock; x < t.to; {
		next := min(x+stripKeys, (x/def.KeySplit+1)*def.KeySplit, t.to)
		op.strip(t, w, x, next)
		x = next
		if x%def.KeySplit == 0 && x < t.to {
			op.merge(w, rows, merged)
			merged = true
		}
	}
	final := &w.split
	if merged {
		op.merge(w, rows, true)
		final = &w.total
	}
	op.store(t, final)
}

// firstKey is the first position visible to a query.
func (op *attention) firstKey(query int) int {
	if op.shape.Window == 0 {
		return 0
	}
	return max(0, query-op.shape.Window+1)
}

func (op *attention) load(t queryTile, w *attentionScratch) {
	q, width := op.d.matrix(op.q), op.group*op.shape.HeadDim // the heads of a group lie side by side
	w.q = sized(w.q, (t.to-t.from)*width)
	for i := range t.to - t.from {
		q.copyHead(w.q[i*width:][:width], t.span.Row+t.from-t.span.Pos+i, t.kvHead)
	}
}

// strip takes the keys of positions [from, to), which lie in one split and begin with a block, through the online
// softmax block by block.
func (op *attention) strip(t queryTile, w *attentionScratch, from, to int) {
	dim, values, rows, n := op.shape.HeadDim, op.shape.Values(), (t.to-t.from)*op.group, to-from
	w.k, w.v, w.s = sized(w.k, n*dim), sized(w.v, n*values), sized(w.s, rows*n)
	k := op.rows(w, w.k, op.kv.K, op.keys, t, dim, from, to)
	v := op.rows(w, w.v, op.kv.V, op.values, t, values, from, to)
	clear(w.s)
	op.d.mm.Tile(&w.mm, w.s, n, rows, n, dim, gemm.View{X: w.q, RS: dim, CS: 1}, transposed(k))
	for lo := from; lo < to; lo += op.d.def.KeyBlock {
		hi := min(lo+op.d.def.KeyBlock, to)
		scores := gemm.View{X: w.s[lo-from:], RS: n, CS: 1}
		op.softmaxBlock(t, w, scores, lo, hi)
		w.split.scale(w.decay, op.d.vec)
		op.d.mm.Tile(&w.mm, w.split.o, values, rows, values, hi-lo, scores, gemm.View{X: v.X[(lo-from)*v.RS:], RS: v.RS,
			CS: 1})
	}
}

// rows is a head of keys or values at positions [from, to) of a tile, from x or from its codes.
func (op *attention) rows(w *attentionScratch, buf []float32, x kernels.Tensor, codes *codedHeads, t queryTile, width,
	from, to int) gemm.View {
	if t.list == nil && codes == nil {
		return op.d.heads(buf, x, op.kv, t.span, t.kvHead, width, from, to)
	}
	var m matrix
	if codes == nil {
		m = op.d.matrix(x)
	}
	for i, n := 0, 1; i < to-from; i += n {
		sequence, position := t.span, from+i
		if t.list != nil {
			sequence, position = t.keys, int(t.list[from+i])
		} else if codes != nil { // rows of a page lie together
			n = min(to-position, op.kv.PageRows-position%op.kv.PageRows)
		}
		row, dst := cacheRow(op.kv, sequence, position), buf[i*width:(i+n)*width]
		if codes == nil {
			m.copyHead(dst, row, t.kvHead)
		} else {
			codes.copyRows(op.d.mm, &w.mm, dst, row, n, t.kvHead)
		}
	}
	return gemm.View{X: buf, RS: width, CS: 1}
}

// visible is the range of keys visible to a query in block [lo, hi), counted from lo.
func (op *attention) visible(query, lo, hi int) (from, to int) {
	to = max(0, min(hi, query+1)-lo)
	return min(to, max(0, op.firstKey(query)-lo)), to
}

// merge adds the finished split to the total, or makes it the total, and starts the next split.
func (op *attention) merge(w *attentionScratch, rows int, started bool) {
	if started {
		w.total.add(&w.split, op.d.vec)
	} else {
		w.split, w.total = w.total, w.split
	}
	w.split.reset(rows, op.shape.Values())
}

// store writes out and lse of a tile.
func (op *attention) store(t queryTile, f *online) {
	out, lse, width := op.d.matrix(op.out), op.lse.F32s(), op.group*op.shape.Values()
	for i := range t.to - t.from {
		row := t.span.Row + t.from - t.span.Pos + i
		for g := range op.group {
			r := i*op.group + g
			op.d.vec.Scale(f.row(r), 1/f.l[r])
			lse[row*op.lse.Stride+t.kvHead*op.group+g] = f.m[r] + float32(kernels.Ln(f.l[r])*kernels.Log2E)
		}
		out.storeHead(row, t.kvHead, f.o[i*width:][:width])
	}
}

// sized is x with length n, reallocated if it is too small. Its content is undefined.
func sized[E any](x []E, n int) []E { return slices.Grow(x[:0], n)[:n] }
