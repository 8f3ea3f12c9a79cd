package cpu

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

var _ kernels.SparseAttention = (*Device)(nil)

// seqRow is a row of a batch and the sequence that it belongs to.
type seqRow struct {
	span *kernels.Span
	pos  int
}

// at is the row of the batch.
func (r seqRow) at() int { return r.span.Row + r.pos - r.span.Pos }

func seqRows(l *kernels.Layout) (rows []seqRow) {
	for i := range l.Spans {
		s := &l.Spans[i]
		for pos := s.Pos; pos < s.Pos+s.Rows; pos++ {
			rows = append(rows, seqRow{s, pos})
		}
	}
	return rows
}

// selectScratch is memory of one row of SelectKeys.
type selectScratch struct {
	mm        gemm.Scratch
	q, k, s   []float32 // [Heads, Dim], [stripKeys, Dim], [Heads, stripKeys]
	scores    []float32 // [keys]
	positions []int32
}

var selectScratches = sync.Pool{New: func() any { return new(selectScratch) }}

// SelectKeys writes the positions of each row's selected keys, ascending, to selected int32 [T, TopK], -1 after the
// last.
func (d *Device) SelectKeys(selected, q, weights kernels.Tensor, keys kernels.KV, l *kernels.Layout, x kernels.Index) {
	if q.Cols != x.Heads*x.Dim || weights.Cols != x.Heads || keys.K.Cols != x.Dim || selected.Cols != x.TopK ||
		selected.Rows < l.Rows() {
		panic(fmt.Sprintf("cpu: selection %+v to %s from %s with weights %s on keys %s", x, selected, q, weights,
			keys.K))
	}
	rows, out, w := seqRows(l), selected.I32s(), d.matrix(weights)
	d.pool.each(len(rows), 1, func(_, from, to int) {
		s := selectScratches.Get().(*selectScratch)
		defer selectScratches.Put(s)
		for _, r := range rows[from:to] {
			list := out[r.at()*selected.Stride:][:x.TopK]
			if r.pos < x.TopK {
				for i := range list {
					list[i] = -1
					if i <= r.pos {
						list[i] = int32(i)
					}
				}
				continue
			}
			d.indexScores(s, q, w.load(r.at(), nil), keys, r, x)
			fillList(list, s)
		}
	})
}

// indexScores are those of the keys up to a row's position.
func (d *Device) indexScores(s *selectScratch, q kernels.Tensor, weights []float32, keys kernels.KV, r seqRow,
	x kernels.Index) {
	queries, scale := d.matrix(q), float32(x.Scale)
	s.q, s.scores = sized(s.q, x.Heads*x.Dim), sized(s.scores, r.pos+1)
	copy(s.q, queries.load(r.at(), s.q))
	for from := 0; from <= r.pos; from += stripKeys {
		n := min(stripKeys, r.pos+1-from)
		s.k, s.s = sized(s.k, n*x.Dim), sized(s.s, x.Heads*n)
		clear(s.s)
		k := d.heads(s.k, keys.K, keys, r.span, 0, x.Dim, from, from+n)
		d.mm.Tile(&s.mm, s.s, n, x.Heads, n, x.Dim, gemm.View{X: s.q, RS: x.Dim, CS: 1}, transposed(k))
		for j := range n {
			sum := float32(0)
			for h, w := range weights {
				sum += float32(w * max(float32(s.s[h*n+j]*scale), 0))
			}
			if sum != sum {
				sum = float32(math.Inf(-1))
			}
			s.scores[from+j] = sum
		}
	}
}

// fillList fills the list with the positions of the highest scores, equal ones by position.
func fillList(list []int32, s *selectScratch) {
	s.positions = sized(s.positions, len(s.scores))
	for i := range s.positions {
		s.positions[i] = int32(i)
	}
	slices.SortFunc(s.positions, func(a, b int32) int {
		return cmp.Or(cmp.Compare(s.scores[b], s.scores[a]), cmp.Compare(a, b))
	})
	copy(list, s.positions)
	slices.Sort(list)
}

// listOf is the selected keys of a row.
func listOf(selected kernels.Tensor, row int) []int32 {
	list := selected.I32s()[row*selected.Stride:][:selected.Cols]
	if n := slices.Index(list, -1); n >= 0 {
		list = list[:n]
	}
	return list
}

// SparseAttend is Attention with a list of keys for each query, in tiles of one query.
func (d *Device) SparseAttend(out, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor, l *kernels.Layout,
	a kernels.Attn) {
	checkSparse(kv, l, a, selected, []kernels.Tensor{q}, []kernels.Tensor{out})
	op := d.newAttention(out, lse, q, kv, a)
	var tiles []queryTile
	for _, r := range seqRows(l) {
		list := listOf(selected, r.at())
		last := len(list) - 1 // the query sees the full list
		span := &kernels.Span{Row: r.at(), Rows: 1, Pos: last}
		for h := range a.KVHeads {
			tiles = append(tiles, queryTile{span: span, keys: r.span, list: list, kvHead: h, from: last, to: last + 1})
		}
	}
	op.run(tiles)
}

func checkSparse(kv kernels.KV, l *kernels.Layout, a kernels.Attn, selected kernels.Tensor, q, out []kernels.Tensor) {
	checkAttention(kv, l, a, q, out)
	if a.Window != 0 || selected.Rows < l.Rows() || selected.DType != kernels.I32 {
		panic(fmt.Sprintf("cpu: sparse attention %+v with lists %s", a, selected))
	}
}

// SparseAttendBackward is AttentionBackward with lists of keys.
func (d *Device) SparseAttendBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV,
	selected kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	checkSparse(kv, l, a, selected, []kernels.Tensor{q, dq}, []kernels.Tensor{out, dout})
	d.attentionBackward(dq, dk, dv, dout, out, lse, q, kv, selected, l, a)
}

// keep clears p and ds [n] of keys from `from` on that are not in the list, and appends ds of the others to listed,
// which has an element for each key of the list.
func keep(p, ds []float32, from int, list []int32, listed []float32) []float32 {
	next := 0
	for _, j := range list[len(listed):] {
		at := int(j) - from
		if at >= len(p) {
			break
		}
		clear(p[next:at])
		clear(ds[next:at])
		listed = append(listed, ds[at])
		next = at + 1
	}
	clear(p[next:])
	clear(ds[next:])
	return listed
}

// alongList is dq of the queries of a tile over the selected keys of each.
func (op *attentionGrad) alongList(t gradTile, w *gradScratch, k gemm.View) {
	dim := op.shape.HeadDim
	for r := range t.rows() {
		list := listOf(op.selected, t.row+r/t.heads)
		w.gathered = sized(w.gathered, len(list)*dim)
		for n, j := range list {
			copy(w.gathered[n*dim:][:dim], k.X[int(j)*k.RS:])
		}
		op.d.mm.Tile(&w.mm, w.dq[r*dim:], dim, 1, dim, len(list), gemm.View{X: w.listed[r], RS: len(list), CS: 1},
			gemm.View{X: w.gathered, RS: dim, CS: 1})
	}
}
