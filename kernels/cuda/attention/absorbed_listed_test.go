//go:build cuda

package attention

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
)

// compareListed compares gradients along lists by all queries, and of two shares of the keys by two parts of the
// queries.
func compareListed(t *testing.T, a kernels.Attn, spans []int, topK int, near bool) {
	t.Helper()
	l, rows, _ := attend(spans, 0)
	q, k, o := a.Heads*a.HeadDim, a.HeadDim, a.Heads*a.ValueDim
	normal := func(cols int) cudatest.Operand { return cudatest.Normal(kernels.BF16, rows, cols, 1) }
	x := []cudatest.Operand{normal(o), cudatest.Strided(kernels.BF16, rows, o, 1),
		cudatest.Normal(kernels.F32, rows, a.Heads, 1), cudatest.Strided(kernels.BF16, rows, q, 1),
		cudatest.Strided(kernels.BF16, rows, k, 1), cudatest.Lists(l, topK, near), normal(q), normal(k),
		cudatest.Strided(kernels.BF16, rows, a.ValueDim, 1), normal(k), normal(a.ValueDim)}
	cudatest.Both(t, fmt.Sprintf("%+v of %v, lists of %d", a, spans, topK), x,
		func(dev kernels.Device, x []kernels.Tensor) {
			out, dout, lse, q, kv, lists := x[0], x[1], x[2], x[3], shared(x[4], a, 0), x[5]
			dev.(kernels.SparseAttention).SparseAttendBackward(x[6], x[7], x[8], dout, out, lse, q, kv, lists, l, a)
			divideKeys(dev, [2]kernels.Tensor(x[9:]), dout, out, lse, q, kv, lists, l, a)
		})
}

// divideKeys computes the gradients of keys and values by parts of the queries that end anywhere, of keys that are
// dealt to two.
func divideKeys(dev kernels.Device, grads [2]kernels.Tensor, dout, out, lse, q kernels.Tensor, kv kernels.KV,
	lists kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	d, mem, rows := dev.(kernels.DividedAttention), kernels.NewArena(dev), l.Rows()
	delta := mem.New(kernels.F32, rows, a.Heads)
	d.AttentionDelta(delta, dout, out, a)
	for _, keys := range l.DealKeys(2) {
		sums := mem.New(kernels.F32, rows, a.HeadDim+a.ValueDim)
		dk, dv := mem.New(kernels.BF16, rows, a.HeadDim), mem.New(kernels.BF16, rows, a.ValueDim)
		for _, part := range [][2]int{{0, rows/3 + 1}, {rows/3 + 1, rows}} {
			from, to := part[0], part[1]
			d.AttentionKeyGrad(dk, dv, sums, dout.RowRange(from, to), delta.RowRange(from, to), lse.RowRange(from, to),
				q.RowRange(from, to), kv, lists.RowRange(from, to), l, a,
				kernels.KeyPart{From: from, To: to, Keys: keys, Begins: from == 0, Ends: to == rows})
		}
		for _, k := range keys {
			dev.Copy(grads[0].RowRange(k[0], k[1]), dk.RowRange(k[0], k[1]))
			dev.Copy(grads[1].RowRange(k[0], k[1]), dv.RowRange(k[0], k[1]))
		}
	}
}

// Numbers of heads that leave rows of a block empty or take two blocks, several sequences, lists that end anywhere in a
// unit of entries, keys and queries in parts.
func TestAbsorbedListed(t *testing.T) {
	d := cudatest.GPU
	defer func() { d.Path = "" }()
	d.Path = "lists"
	for i, heads := range []int{64, 5, 70} {
		compareListed(t, absorbedShape(headDimsAbsorbed[2], heads), []int{1, 75, 40 + i}, []int{37, 66, 8}[i], i == 1)
	}
}

// The bits do not depend on how many queries there is room for in a pass.
func TestAbsorbedListedPasses(t *testing.T) {
	d := cudatest.GPU
	defer func(room int) { d.Path, d.ChunkBytes = "", room }(d.ChunkBytes)
	d.Path = "lists"
	for _, queries := range []int{30, 7, 1} {
		d.ChunkBytes = queries * 2 * dsBytes
		compareListed(t, absorbedShape(headDimsAbsorbed[2], 3), []int{40, 5}, 20, true)
	}
}

// Sequences of several tiles of keys, of which lists have few.
func TestAbsorbedListedTiles(t *testing.T) {
	d := cudatest.GPU
	defer func() { d.Path = "" }()
	d.Path = "lists"
	compareListed(t, absorbedShape(headDimsAbsorbed[2], 2), []int{3, 1600}, 40, false)
}

// What stays of lists are the entries whose keys are a part's, in their order, of queries in the middle of sequences.
func TestOwnEntries(t *testing.T) {
	l, rows, _ := attend([]int{70, 1, 300}, 0)
	const topK, from = 40, 20
	for _, keys := range append(l.DealKeys(3), [][2]int{{80, 90}, {30, 31}}) {
		lists := cudatest.Lists(l, topK, false)
		part := kernels.KeyPart{From: from, To: rows, Keys: keys}
		var want, counts []int32
		for _, s := range l.Part([2]int{from, rows}).Spans {
			for row := s.Row; row < s.Row+s.Rows; row++ {
				n := int32(0)
				for e := range topK {
					j := int32(binary.LittleEndian.Uint32(lists.Raw[((from+row)*topK+e)*4:]))
					if j >= 0 && within(part, s.KeyRow()+int(j), 1) {
						want, n = append(want, j), n+1
					}
				}
				counts = append(counts, n)
			}
		}
		x, _ := lists.On(cudatest.Card)
		own, _ := cudatest.Ints(rows-from, topK, make([]int32, (rows-from)*topK)).On(cudatest.Card)
		entries, _ := cudatest.Ints(1, rows-from, make([]int32, rows-from)).On(cudatest.Card)
		d := New(cudatest.GPU)
		g := &absorbedGradients{d: &d, part: part, lists: d.listQueries(kernels.KV{}, x.RowRange(from, rows),
			l.Part([2]int{from, rows}))}
		g.ownEntries(driver.AtType(own, kernels.I32), driver.AtType(entries, kernels.I32))
		var got []int32
		for row, n := range int32s(entries) {
			got = append(got, int32s(own.RowRange(row, row+1))[:n]...)
		}
		if !slices.Equal(int32s(entries), counts) || !slices.Equal(got, want) {
			t.Errorf("keys %v: %v entries %v, want %v entries %v", keys, int32s(entries), got, counts, want)
		}
	}
}

// int32s reads a tensor on the card.
func int32s(t kernels.Tensor) []int32 {
	raw := make([]byte, t.Bytes())
	cudatest.Card.Read(raw, t)
	v := make([]int32, t.Len())
	for i := range v {
		v[i] = int32(binary.LittleEndian.Uint32(raw[i*4:]))
	}
	return v
}

// Passes bring every query that may list a key of a tile once, ascending; the chain of a tile begins with the first
// pass that has it and ends with the last.
func TestListedPasses(t *testing.T) {
	l, rows, _ := attend([]int{130, 1, 2000, 64}, 0)
	for _, part := range []kernels.KeyPart{allKeys(l), {From: 100, To: 1500, Keys: l.DealKeys(2)[1], Begins: true},
		{From: 1500, To: rows, Keys: l.DealKeys(2)[0], Ends: true}} {
		lists := &queryLists{numberedQueries: numberQueries(l.Part([2]int{part.From, part.To}), 0), topK: 130}
		for _, room := range []int{1 << 30, 300, 7} {
			checkListedPasses(t, l, part, listedPasses(l, part, lists, lists.calls(keyRows, 1, room, false)))
		}
	}
}

func checkListedPasses(t *testing.T, l *kernels.Layout, part kernels.KeyPart, passes []listedPass) {
	t.Helper()
	type chain struct{ next, begins, ends, keys int }
	chains := map[int]chain{} // by row of a tile's first key; next: row of a query
	for _, p := range passes {
		for _, own := range p.tiles {
			c, some := chains[int(own.row)]
			if !some {
				c = chain{next: max(part.From, int(own.row)), keys: int(own.keys)}
			}
			if int(own.from) < p.first || int(own.to) > p.first+p.count {
				t.Errorf("queries [%d, %d) of a pass of %+v", own.from, own.to, p.absorbedCall)
			}
			for n := own.to; n > own.from; n-- {
				if row := part.From + int(own.query-n) + 1; row != c.next {
					t.Fatalf("keys from %d on have query %d, want %d", own.row, row, c.next)
				}
				c.next++
			}
			c.begins, c.ends = c.begins+int(own.begins), c.ends+int(own.ends)
			chains[int(own.row)] = c
		}
	}
	keys := 0
	for row, c := range chains {
		keys += c.keys
		at := slices.IndexFunc(l.Spans, func(s kernels.Span) bool { return row >= s.Row && row < s.Row+s.Rows })
		end := max(min(l.Spans[at].Row+l.Spans[at].Rows, part.To), part.From, row)
		if c.next != end || c.begins != flag(part.Begins) || c.ends != flag(part.Ends) {
			t.Errorf("keys from %d on: %+v, want queries up to %d", row, c, end)
		}
	}
	want := 0
	for _, k := range part.Keys {
		want += k[1] - k[0]
	}
	if part.Begins && part.Ends && keys != want {
		t.Errorf("%d keys, want %d", keys, want)
	}
}
