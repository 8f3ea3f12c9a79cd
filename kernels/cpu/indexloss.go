package cpu

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

var _ kernels.IndexerLoss = (*Device)(nil)

// indexScratch is memory of one goroutine that works on the entries of rows.
type indexScratch struct {
	mm           gemm.Scratch
	q, k, s      []float32
	scores, p, w []float32 // [entries]
	dq, dk       []float32
}

var indexScratches = sync.Pool{New: func() any { return new(indexScratch) }}

// indexEach calls body for each of n units of work with a scratch, on all threads.
func (d *Device) indexEach(n int, body func(w *indexScratch, i int)) {
	d.pool.each(n, 1, func(_, from, to int) {
		w := indexScratches.Get().(*indexScratch)
		defer indexScratches.Put(w)
		for i := from; i < to; i++ {
			body(w, i)
		}
	})
}

// entriesOf is the keys of each row of a batch: its list, or with selected nil all keys up to its own.
func entriesOf(selected kernels.Tensor, l *kernels.Layout) [][]int32 {
	lists, longest := make([][]int32, l.Rows()), 0
	for _, s := range l.Spans {
		longest = max(longest, s.Rows)
	}
	all := make([]int32, longest)
	for i := range all {
		all[i] = int32(i)
	}
	for _, r := range seqRows(l) {
		if selected.IsNil() {
			lists[r.at()] = all[:r.pos+1]
		} else {
			lists[r.at()] = listOf(selected, r.at())
		}
	}
	return lists
}

// within is the entries [lo, hi) of a list whose keys lie in [from, to).
func within(list []int32, from, to int) (lo, hi int) {
	lo, _ = slices.BinarySearch(list, int32(from))
	hi, _ = slices.BinarySearch(list, int32(to))
	return lo, hi
}

// rowTile is positions [from, to) of a span.
type rowTile struct {
	span     *kernels.Span
	from, to int
}

func rowTiles(l *kernels.Layout, n int) (tiles []rowTile) {
	for i := range l.Spans {
		s := &l.Spans[i]
		for from := 0; from < s.Rows; from += n {
			tiles = append(tiles, rowTile{s, from, min(from+n, s.Rows)})
		}
	}
	return tiles
}

// IndexTarget adds the attention probability of each entry to target F32 [T, entries], heads ascending:
// Exp2(min(dot(q_h, k_j)*c - lse_h, 0)).
func (d *Device) IndexTarget(target, q, k, lse, selected kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	mustEntries(target, selected, l)
	if a.Window != 0 || q.Cols != a.Heads*a.HeadDim || k.Cols != a.KVHeads*a.HeadDim || q.DType != k.DType ||
		lse.Cols != a.Heads {
		panic(fmt.Sprintf("cpu: target of attention %+v, queries %s, keys %s, lse %s", a, q, k, lse))
	}
	op := &indexTarget{d: d, shape: a, c: scoreScale(a), q: q, k: kernels.KV{K: k}, lists: entriesOf(selected, l),
		sum: d.matrix(target), lse: d.matrix(lse)}
	tiles := rowTiles(l, gradQueries)
	// the last tiles of a span see most keys
	d.indexEach(len(tiles), func(w *indexScratch, i int) { op.tile(w, tiles[len(tiles)-1-i]) })
}

// indexTarget is one call of IndexTarget.
type indexTarget struct {
	d        *Device
	shape    kernels.Attn
	c        float32
	q        kernels.Tensor
	k        kernels.KV
	lists    [][]int32 // by row
	sum, lse matrix
}

// tile adds the probabilities of a tile's entries, head by head.
func (op *indexTarget) tile(w *indexScratch, t rowTile) {
	m, dim, group := t.to-t.from, op.shape.HeadDim, op.shape.Heads/op.shape.KVHeads
	w.q, w.k, w.s = sized(w.q, m*dim), sized(w.k, stripKeys*dim), sized(w.s, m*stripKeys)
	for h := range op.shape.Heads {
		q := op.d.heads(w.q, op.q, op.k, t.span, h, dim, t.from, t.to)
		for from := 0; from < t.to; from += stripKeys {
			n := min(stripKeys, t.to-from)
			k := op.d.heads(w.k, op.k.K, op.k, t.span, h/group, dim, from, from+n)
			clear(w.s[:m*n])
			op.d.mm.Tile(&w.mm, w.s, n, m, n, dim, q, transposed(k))
			for i := range m {
				op.row(w, w.s[i*n:][:n], seqRow{t.span, t.from + i}, from, h)
			}
		}
	}
}

// row adds the probabilities of one head to a row's entries with keys at positions from, from+1, ...; dots are those
// with these keys.
func (op *indexTarget) row(w *indexScratch, dots []float32, r seqRow, from, h int) {
	list := op.lists[r.at()]
	lo, hi := within(list, from, from+len(dots))
	w.p = sized(w.p, hi-lo)
	for e, j := range list[lo:hi] {
		w.p[e] = dots[int(j)-from] * op.c
	}
	op.d.vec.Exp2Sub(w.p, w.p, 1, op.lse.load(r.at(), nil)[h])
	sum := op.sum.load(r.at(), nil)[lo:hi]
	op.d.vec.Add(sum, sum, w.p)
}

// mustEntries panics if t is too small for the entries of each row.
func mustEntries(t, selected kernels.Tensor, l *kernels.Layout) {
	bad := t.DType != kernels.F32 || t.Rows < l.Rows() || !selected.IsNil() && (selected.DType != kernels.I32 ||
		selected.Rows < l.Rows())
	for _, s := range l.Spans {
		bad = bad || s.Pos != 0 || selected.IsNil() && s.Rows > t.Cols || !selected.IsNil() &&
			min(s.Rows, selected.Cols) > t.Cols
	}
	if bad {
		panic(fmt.Sprintf("cpu: %s for the entries of %d rows with lists %s", t, l.Rows(), selected))
	}
}

func mustIndexer(q, weights, k kernels.Tensor, x kernels.Index) {
	if q.Cols != x.Heads*x.Dim || k.Cols != x.Dim || q.DType != k.DType || weights.Cols != x.Heads ||
		weights.DType != kernels.F32 {
		panic(fmt.Sprintf("cpu: indexer loss of %+v, queries %s, keys %s, weights %s", x, q, k, weights))
	}
}

// indexDots is dot(q_h, k_j)*c of a row's heads and entries, [Heads, entries], in w.s; the row's keys are left in w.k,
// its queries in w.q.
func (d *Device) indexDots(w *indexScratch, q, k matrix, r seqRow, list []int32, x kernels.Index) {
	w.q, w.k, w.s = sized(w.q, x.Heads*x.Dim), sized(w.k, len(list)*x.Dim), sized(w.s, x.Heads*len(list))
	copy(w.q, q.load(r.at(), w.q))
	for e, j := range list {
		k.copyHead(w.k[e*x.Dim:][:x.Dim], r.span.Row+int(j), 0)
	}
	clear(w.s)
	n := len(list)
	d.mm.Tile(&w.mm, w.s, n, x.Heads, n, x.Dim, gemm.View{X: w.q, RS: x.Dim, CS: 1},
		gemm.View{X: w.k, RS: 1, CS: x.Dim})
	d.vec.Scale(w.s, float32(x.Scale))
}

// IndexLoss writes loss F32 [1, T], the divergence of each row, and replaces target F32 [T, entries] by the gradient of
// loss by the scores.
func (d *Device) IndexLoss(loss, target, q, weights, k, selected kernels.Tensor, l *kernels.Layout, x kernels.Index) {
	mustEntries(target, selected, l)
	mustIndexer(q, weights, k, x)
	rows, lists, out := seqRows(l), entriesOf(selected, l), vector("index loss", "loss", loss, l.Rows())
	queries, ws, keys, t := d.matrix(q), d.matrix(weights), d.matrix(k), d.matrix(target)
	d.indexEach(len(rows), func(w *indexScratch, i int) {
		r := rows[i]
		list := lists[r.at()]
		n := len(list)
		d.indexDots(w, queries, keys, r, list, x)
		w.scores = sized(w.scores, n)
		for j := range w.scores {
			sum := float32(0)
			for h, weight := range ws.load(r.at(), nil) {
				sum += float32(weight * max(w.s[h*n+j], 0))
			}
			w.scores[j] = sum
		}
		out[r.at()] = d.divergence(w, t.load(r.at(), nil)[:n])
	})
}

// divergence is KL(target || softmax(scores)) of a row; t becomes its gradient.
func (d *Device) divergence(w *indexScratch, t []float32) float32 {
	s := w.scores
	w.p, w.w = sized(w.p, len(t)), sized(w.w, len(t))
	total, m := d.vec.Tree(t), d.vec.Max(s)
	d.vec.Exp2Sub(w.p, s, kernels.Log2E, m)
	z := d.vec.Tree(w.p)
	inverse, ln := 1/z, kernels.Ln(z)
	for e, y := range w.p {
		p := t[e] / total
		w.w[e] = 0
		if p >= smallestNormal {
			w.w[e] = p * (kernels.Ln(p) - ((s[e] - m) - ln))
		}
		t[e] = float32(y*inverse) - p
	}
	return d.vec.Tree(w.w)
}

// smallestNormal is the smallest argument of Ln.
var smallestNormal = float32(math.Ldexp(1, -126))
