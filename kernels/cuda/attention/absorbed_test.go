//go:build cuda

package attention

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
)

// absorbedShape is a layer of absorbed latent attention.
func absorbedShape(dims [2]int, heads int) kernels.Attn {
	a := latentShape(dims, [2]int{heads, 1})
	a.Latent = true
	return a
}

// absorbedLayer compares attention on packed sequences and its gradient; topK 0: dense.
func absorbedLayer(t *testing.T, a kernels.Attn, spans []int, topK int, near bool) {
	t.Helper()
	l, rows, _ := attend(spans, 0)
	q, k, o := a.Heads*a.HeadDim, a.HeadDim, a.Heads*a.ValueDim
	x := []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, o, 1), cudatest.Normal(kernels.F32, rows, a.Heads, 1),
		cudatest.Strided(kernels.BF16, rows,
			q, 1), cudatest.Strided(kernels.BF16, rows, k, 1), cudatest.Lists(l, max(topK, 1), near),
		cudatest.Strided(kernels.BF16, rows, o, 1), cudatest.Strided(kernels.BF16, rows, q, 1),
		cudatest.Normal(kernels.BF16, rows, k, 1),
		cudatest.Strided(kernels.BF16, rows, a.ValueDim, 1), cudatest.Normal(kernels.BF16, rows, q, 1),
		cudatest.Normal(kernels.BF16, rows, k, 1), cudatest.Normal(kernels.BF16, rows, a.ValueDim, 1)}
	cudatest.Both(t, fmt.Sprintf("%+v of %v, lists of %d", a, spans, topK), x,
		func(d kernels.Device, x []kernels.Tensor) {
			kv := shared(x[3], a, 0)
			if topK == 0 {
				d.Attention(x[0], x[1], x[2], kv, l, a)
				d.AttentionBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], kv, l, a)
				divided(d, [3]kernels.Tensor(x[9:]), x[5], x[0], x[1], x[2], kv, kernels.Tensor{}, l, a)
				return
			}
			s := d.(kernels.SparseAttention)
			s.SparseAttend(x[0], x[1], x[2], kv, x[4], l, a)
			s.SparseAttendBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], kv, x[4], l, a)
			divided(d, [3]kernels.Tensor(x[9:]), x[5], x[0], x[1], x[2], kv, x[4], l, a)
		})
}

// divided computes out, lse, and the gradients of queries by two parts of the rows, those of keys and values by two
// parts of the keys, each by three parts of the queries.
func divided(dev kernels.Device, grads [3]kernels.Tensor, dout, out, lse, q kernels.Tensor, kv kernels.KV,
	lists kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	d, mem, rows := dev.(kernels.DividedAttention), kernels.NewArena(dev), l.Rows()
	for _, part := range [][2]int{{0, rows / 3}, {rows / 3, rows}} {
		from, to := part[0], part[1]
		own := &kernels.Layout{Segments: []int32{0, int32(to - from)}}
		for _, s := range l.Spans {
			if first, end := max(s.Row, from), min(s.Row+s.Rows, to); first < end {
				own.Spans = append(own.Spans, kernels.Span{Row: first - from, Rows: end - first, Pos: first - s.Row,
					Shift: s.Row + from - first})
			}
		}
		some := lists
		if lists.IsNil() {
			dev.Attention(out.RowRange(from, to), lse.RowRange(from, to), q.RowRange(from, to), kv, own, a)
		} else {
			some = lists.RowRange(from, to)
			dev.(kernels.SparseAttention).SparseAttend(out.RowRange(from, to), lse.RowRange(from, to),
				q.RowRange(from, to), kv, some, own, a)
		}
		delta := mem.New(kernels.F32, to-from, a.Heads)
		d.AttentionDelta(delta, dout.RowRange(from, to), out.RowRange(from, to), a)
		d.AttentionQueryGrad(grads[0].RowRange(from, to), dout.RowRange(from, to), delta, lse.RowRange(from, to),
			q.RowRange(from, to), kv, some, own, a)
	}
	mine, others := keysOf(l)
	delta := mem.New(kernels.F32, rows, a.Heads)
	d.AttentionDelta(delta, dout, out, a)
	for _, keys := range [][][2]int{mine, others} {
		sums := mem.New(kernels.F32, rows, a.HeadDim+a.ValueDim)
		dk, dv := mem.New(kernels.BF16, rows, a.HeadDim), mem.New(kernels.BF16, rows, a.ValueDim)
		cuts := []int{0, rows / 5, rows / 2, rows}
		for i := range cuts[1:] {
			from, to := cuts[i], cuts[i+1]
			some := lists
			if !lists.IsNil() {
				some = lists.RowRange(from, to)
			}
			d.AttentionKeyGrad(dk, dv, sums, dout.RowRange(from, to), delta.RowRange(from, to), lse.RowRange(from, to),
				q.RowRange(from, to), kv, some, l, a,
				kernels.KeyPart{From: from, To: to, Keys: keys, Begins: from == 0, Ends: to == rows})
		}
		for _, k := range keys {
			dev.Copy(grads[1].RowRange(k[0], k[1]), dk.RowRange(k[0], k[1]))
			dev.Copy(grads[2].RowRange(k[0], k[1]), dv.RowRange(k[0], k[1]))
		}
	}
}

// keysOf is the keys of two that share them: ranges that begin and end anywhere in a tile.
func keysOf(l *kernels.Layout) (mine, others [][2]int) {
	for from, i := 0, 0; from < l.Rows(); i++ {
		to := min(from+[]int{40, 7, 150}[i%3], l.Rows())
		if i%2 == 0 {
			mine = append(mine, [2]int{from, to})
		} else {
			others = append(others, [2]int{from, to})
		}
		from = to
	}
	return mine, others
}

// Every width and number of heads, sequences that end anywhere in a block, lists that end anywhere in a step.
func TestAbsorbed(t *testing.T) {
	for _, dims := range headDimsAbsorbed {
		for i, heads := range []int{2, 4, 20} {
			absorbedLayer(t, absorbedShape(dims, heads), []int{1, 63, 64, 65, 7}, 0, false)
			absorbedLayer(t, absorbedShape(dims, heads), []int{1, 70, 140, 7}, []int{8, 66, 130}[i], i == 1)
		}
		for _, heads := range []int{64, 128} {
			absorbedLayer(t, absorbedShape(dims, heads), []int{1, 34}, 0, false)
			absorbedLayer(t, absorbedShape(dims, heads), []int{37}, 18, false)
		}
	}
	// most blocks of queries have none of a block's keys
	absorbedLayer(t, absorbedShape(headDimsAbsorbed[0], 2), []int{600, 130}, 20, true)
}

// absorbedCached compares attention where keys lie in pages; what no position wrote is NaN.
func absorbedCached(t *testing.T, a kernels.Attn, l *kernels.Layout, pages, pageRows, topK int, near bool) {
	t.Helper()
	k := cudatest.Strided(kernels.BF16, pages*pageRows, a.HeadDim, 1)
	for _, s := range l.Spans {
		for p := s.Pos + s.Rows; p < len(s.Pages)*pageRows; p++ {
			at := 2 * k.Stride * (int(s.Pages[p/pageRows])*pageRows + p%pageRows)
			for i := range 2 * k.Stride {
				k.Raw[at+i] = 0xff
			}
		}
	}
	rows := l.Rows()
	cudatest.Both(t, fmt.Sprintf("%+v, pages of %d, lists of %d", a, pageRows, topK),
		[]cudatest.Operand{cudatest.Normal(kernels.BF16, rows, a.Heads*a.ValueDim, 1), cudatest.Normal(kernels.F32,
			rows, a.Heads, 1),
			cudatest.Normal(kernels.BF16, rows, a.Heads*a.HeadDim, 1), k, cudatest.Lists(l, max(topK, 1), near)},
		func(d kernels.Device, x []kernels.Tensor) {
			if kv := shared(x[3], a, pageRows); topK == 0 {
				d.Attention(x[0], x[1], x[2], kv, l, a)
			} else {
				d.(kernels.SparseAttention).SparseAttend(x[0], x[1], x[2], kv, x[4], l, a)
			}
		})
}

// The cache of pages: cuts of a prefill, and single rows at the ends of sequences around the borders of blocks and
// splits.
func TestAbsorbedCached(t *testing.T) {
	for i, dims := range headDimsAbsorbed {
		a := absorbedShape(dims, []int{4, 2, 3}[i])
		l, _, pages := attend([]int{1, 1, 40, 20}, 7)
		absorbedCached(t, a, l, pages, 7, 0, false)
		absorbedCached(t, a, l, pages, 7, 30, true)
		l, pages = decoded(48, 1, 63, 64, 65, 2047, 2048, 2049, 4100)
		absorbedCached(t, a, l, pages, 48, 0, false)
		absorbedCached(t, a, l, pages, 48, []int{2048, 100, 640}[i], false)
	}
	l, pages := decoded(64, 5000)
	absorbedCached(t, absorbedShape(headDimsAbsorbed[2], 66), l, pages, 64, 0, false)
	absorbedCached(t, absorbedShape(headDimsAbsorbed[0], 2), l, pages, 64, 4500, false)
}

// Both kernels of 576 and 512 columns: numbers of heads that leave rows of a block empty, lists of one to five key
// blocks that end anywhere in the last, several splits, and pages in codes, also of eleven key blocks.
func TestAbsorbedForms(t *testing.T) {
	d := cudatest.GPU
	defer func() { d.Path = "" }()
	for _, form := range []string{"portable", ""} {
		t.Run(form, func(t *testing.T) {
			d.Path = form
			for i, heads := range []int{1, 20, 64, 70} {
				a := absorbedShape(headDimsAbsorbed[2], heads)
				l, pages := decoded(16, 1, 64, 65, 100+i, 128, 190+i, 257+i, 320)
				absorbedCached(t, a, l, pages, 16, 0, false)
				absorbedCached(t, a, l, pages, 16, 60+70*i, i == 1)
			}
			l, pages := decoded(16, 64, 190, 257, 650)
			for _, topK := range []int{0, 200} {
				codedAttention(t, absorbedShape(headDimsAbsorbed[2], 66), l, pages, 16, topK)
			}
			l, pages = decoded(64, 2049, 4100)
			absorbedCached(t, absorbedShape(headDimsAbsorbed[2], 33), l, pages, 64, 0, false)
		})
	}
}

// Lists and sequences of several splits, forward and backward, and a workspace that holds all, a few or none of them.
func TestAbsorbedSplits(t *testing.T) {
	def := cudatest.Card.Definition()
	def.KeySplit = 128
	rooms := func(t *testing.T) {
		d := cudatest.GPU
		defer func(room int) { d.ChunkBytes = room }(d.ChunkBytes)
		for _, room := range []int{d.ChunkBytes, 200 << 10, 1} {
			d.ChunkBytes = room
			absorbedLayer(t, absorbedShape(headDimsAbsorbed[0], 2), []int{130, 300, 3, 129}, 0, false)
			absorbedLayer(t, absorbedShape(headDimsAbsorbed[0], 2), []int{130, 300, 128}, 140, true)
		}
	}
	cudatest.By(t, def, map[string]func(*testing.T){"Rooms": rooms, "Cached": TestAbsorbedCached,
		"Composition": TestAbsorbedComposition}, func() {})
}

// Lists of all keys are dense attention on the card too, and another list is another result: the comparison can fail.
func TestAbsorbedAllKeys(t *testing.T) {
	a := absorbedShape(headDimsAbsorbed[1], 20)
	l, rows, _ := attend([]int{70, 130}, 0)
	x := []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, a.Heads*a.ValueDim, 1), cudatest.Normal(kernels.F32,
		rows, a.Heads, 1),
		cudatest.Normal(kernels.BF16, rows, a.Heads*a.HeadDim, 1), cudatest.Normal(kernels.BF16, rows, a.HeadDim, 1),
		cudatest.Lists(l, 130, false),
		cudatest.Normal(kernels.BF16, rows, a.Heads*a.ValueDim, 1), cudatest.Normal(kernels.BF16, rows,
			a.Heads*a.HeadDim, 1),
		cudatest.Normal(kernels.BF16, rows, a.HeadDim, 1), cudatest.Normal(kernels.BF16, rows, a.ValueDim, 1)}
	dense := func(d kernels.Device, x []kernels.Tensor) {
		d.Attention(x[0], x[1], x[2], shared(x[3], a, 0), l, a)
		d.AttentionBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], shared(x[3], a, 0), l, a)
	}
	sparse := func(d kernels.Device, x []kernels.Tensor) {
		d.(kernels.SparseAttention).SparseAttend(x[0], x[1], x[2], shared(x[3], a, 0), x[4], l, a)
		d.(kernels.SparseAttention).SparseAttendBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], shared(x[3], a, 0),
			x[4], l, a)
	}
	if n, at := cudatest.Differences(t, x, dense, sparse); n > 0 {
		t.Errorf("lists of all keys: %d bytes differ, first %s", n, at)
	}
	x[4] = cudatest.Lists(l, 100, false)
	if n, _ := cudatest.Differences(t, x, dense, sparse); n == 0 {
		t.Error("lists of some keys are not noticed")
	}
}

// The rows of a sequence have the bits of training in any cut of a prefill and as single rows, stored in pages by
// StoreKV.
func TestAbsorbedComposition(t *testing.T) {
	const n, pageRows = 150, 7
	r := rand.New(rand.NewPCG(71, 72))
	for _, topK := range []int{0, 20} {
		a := absorbedShape(headDimsAbsorbed[0], 3)
		whole := &kernels.Layout{Spans: []kernels.Span{{Rows: n}}, Segments: []int32{0, n}}
		span := kernels.Span{}
		for p := range driver.Blocks(n, pageRows) {
			span.Pages = append(span.Pages, int32(p*5%driver.Blocks(n, pageRows)))
		}
		on := func(o cudatest.Operand) kernels.Tensor {
			view, _ := o.On(cudatest.Card)
			return view
		}
		q, k, indices := on(cudatest.Normal(kernels.BF16, n, a.Heads*a.HeadDim, 1)),
			on(cudatest.Normal(kernels.BF16, n, a.HeadDim, 1)),
			on(cudatest.Lists(whole, max(topK, 1), false))
		run := func(cut func() int) []byte {
			out, lse := on(cudatest.Normal(kernels.BF16, n, a.Heads*a.ValueDim, 0)),
				on(cudatest.Normal(kernels.F32, n, a.Heads, 0))
			cache := shared(on(cudatest.Normal(kernels.BF16, (len(span.Pages)+1)*pageRows, a.HeadDim, 1)), a, pageRows)
			for at := 0; at < n; {
				to := min(n, at+cut())
				rows := func(t kernels.Tensor) kernels.Tensor { return t.RowRange(at, to) }
				s, kv := span, cache
				s.Pos, s.Rows = at, to-at
				if to-at == n { // as in training
					s, kv = whole.Spans[0], shared(k, a, 0)
				}
				l := &kernels.Layout{Spans: []kernels.Span{s}, Segments: []int32{0, int32(to - at)}}
				if kv.PageRows > 0 {
					cudatest.Card.StoreKV(kv, rows(k), rows(k).ColRange(0, a.ValueDim), l)
				}
				if topK == 0 {
					cudatest.Card.Attention(rows(out), rows(lse), rows(q), kv, l, a)
				} else {
					cudatest.Card.(kernels.SparseAttention).SparseAttend(rows(out), rows(lse), rows(q), kv,
						rows(indices),
						l, a)
				}
				at = to
			}
			raw, logs := make([]byte, out.Bytes()), make([]byte, lse.Bytes())
			cudatest.Card.Read(raw, out)
			cudatest.Card.Read(logs, lse)
			return append(raw, logs...)
		}
		want := run(func() int { return n })
		for name, cut := range map[string]func() int{"single rows": func() int {
			return 1
		}, "any cuts": func() int { return 1 + r.IntN(70) }} {
			if !slices.Equal(run(cut), want) {
				t.Errorf("lists of %d, %s: other bits than the whole sequence", topK, name)
			}
		}
	}
}

// StoreKV of values that are not columns of their keys writes them where the cache has both in one place.
func TestStoreShared(t *testing.T) {
	a := absorbedShape(headDimsAbsorbed[0], 2)
	const pageRows = 16
	l, rows, pages := attend([]int{1, 40, 3}, pageRows)
	for _, own := range []bool{true, false} {
		cudatest.Both(t, fmt.Sprint("own values ", own), []cudatest.Operand{cudatest.Normal(kernels.BF16, rows,
			a.HeadDim, 1),
			cudatest.Normal(kernels.BF16, rows, a.ValueDim, 1), cudatest.Strided(kernels.BF16, pages*pageRows,
				a.HeadDim, 1)},
			func(d kernels.Device, x []kernels.Tensor) {
				v := x[1]
				if !own {
					v = x[0].ColRange(0, a.ValueDim)
				}
				d.StoreKV(shared(x[2], a, pageRows), x[0], v, l)
			})
	}
}

// Values of their own are refused.
func TestMustShare(t *testing.T) {
	defer func() {
		if fault, ok := recover().(kernels.Fault); !ok || !strings.Contains(fault.Error(), "first columns") {
			t.Errorf("values of their own: %v", fault)
		}
	}()
	mustShare(kernels.KV{K: kernels.Tensor{Cols: 40}, V: kernels.Tensor{Cols: 32, Stride: 8}})
}

// shared is keys whose first columns are the values.
func shared(k kernels.Tensor, a kernels.Attn, pageRows int) kernels.KV {
	return kernels.KV{K: k, V: k.ColRange(0, a.ValueDim), PageRows: pageRows}
}
