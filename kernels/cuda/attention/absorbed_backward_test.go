//go:build cuda

package attention

import (
	"bytes"
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// Gradients of 576 and 512 columns by both forms: numbers of heads that leave rows of a block empty or take two blocks,
// sequences that end anywhere in a block of queries and a tile of keys, lists that end anywhere in a block of entries.
func TestAbsorbedBackward(t *testing.T) {
	d := cudatest.GPU
	defer func() { d.Path = "" }()
	for i, heads := range []int{1, 20, 64, 70} {
		a := absorbedShape(headDimsAbsorbed[2], heads)
		absorbedLayer(t, a, []int{1, 63, 64, 65, 7}, 0, false)
		absorbedLayer(t, a, []int{1, 70, 140 + i, 7}, []int{8, 66, 100, 130}[i], i == 1)
	}
	d.Path = "portable"
	absorbedLayer(t, absorbedShape(headDimsAbsorbed[2], 5), []int{1, 34, 65}, 0, false)
	absorbedLayer(t, absorbedShape(headDimsAbsorbed[2], 5), []int{70}, 18, false)
}

// The bits depend neither on how much of dS, or of P and dS, there is room for, nor on how many blocks share the units
// of a pass: room for all units, for some blocks of queries and for one of them; blocks that go from tile to tile and
// meet some of which no pair is on a list; queries that share a unit, and those that have two.
func TestAbsorbedBackwardPasses(t *testing.T) {
	d := cudatest.GPU
	defer func(room, processors int) { d.ChunkBytes, d.Processors = room, processors }(d.ChunkBytes, d.Processors)
	for i, heads := range []int{3, 20, 64, 70} {
		for j, units := range []int{[]int{47, 39, 60, 90}[i], []int{9, 1, 20, 0}[i]} {
			d.ChunkBytes, d.Processors = 2*unitBytes*units, []int{1, 10, 132, 3}[(i+j)%4]
			// dense, and lists
			absorbedLayer(t, absorbedShape(headDimsAbsorbed[2], heads), []int{190, 5}, 20*((i+j)%2), true)
		}
	}
}

// Passes go over every unit once; those of a tile of keys come queries ascending, with the first of them chains begin,
// with the last they end. A tile that no query reads is in one pass.
func TestKeyPasses(t *testing.T) {
	l, rows, _ := attend([]int{130, 1, 700, 64}, 0)
	mine, _ := keysOf(l)
	for _, part := range []kernels.KeyPart{allKeys(l), {From: 60, To: 500, Keys: mine, Begins: true},
		{From: 500, To: rows, Keys: mine, Ends: true}, {From: 0, To: rows, Begins: true, Ends: true}} {
		for _, queries := range []int{1, 2, 4} {
			w := planKeys(l, part, absorbedDkvWideKeys, queries)
			for _, most := range []int{1 << 30, 700, 8, 1} {
				checkPasses(t, l, part, &w, queries, most)
			}
		}
	}
	if w := planKeys(l, allKeys(l), absorbedDkvWideKeys, 1); len(w.tiles) != 2+1+6+1 {
		t.Errorf("%d tiles", len(w.tiles))
	}
}

func checkPasses(t *testing.T, l *kernels.Layout, part kernels.KeyPart, w *keyWork, queries, most int) {
	t.Helper()
	seen, done := map[int]int{}, map[int]int{} // by a tile's first row: pairs of a query and the tile; 1 begun, 2 ended
	for _, p := range w.passes(most) {
		blocks := 0
		for _, k := range w.of(p) {
			row := int(k.row + k.at)
			if int(k.first) != blocks || !within(part, row, min(absorbedDkvWideKeys, int(k.rows-k.at))) {
				t.Fatalf("part %+v, room for %d: tile %+v behind %d blocks", part, most, k, blocks)
			}
			blocks += int(k.count)
			if begins := done[row] == 0; done[row] > 1 || part.Begins && begins != (k.begins == 1) {
				t.Fatalf("part %+v, room for %d: tile %+v begins: %v", part, most, k, begins)
			}
			done[row] = 1 + flag(k.ends == 1)
			for x := int(k.from); x < int(k.from+k.count); x++ {
				for i := x * queries; i < (x+1)*queries; i++ {
					if i >= int(k.begin) && i < int(k.end) && i >= int(k.at) {
						if at := row - int(k.at) + i; at < part.From || at >= part.To {
							t.Fatalf("part %+v, room for %d: tile %+v has query %d", part, most, k, i)
						}
						seen[row]++
					}
				}
			}
		}
		if blocks != p.blocks || blocks > max(most, len(w.tiles)) {
			t.Errorf("part %+v, room for %d: %d blocks in %+v", part, most, blocks, p)
		}
	}
	for _, s := range l.Spans {
		for at := 0; at < s.Rows; at += absorbedDkvWideKeys {
			row, want := s.Row+at, 0
			if within(part, row, min(absorbedDkvWideKeys, s.Rows-at)) {
				want = max(0, min(s.Row+s.Rows, part.To)-max(row, part.From))
				if part.Ends && done[row] != 2 || part.Begins && done[row] == 0 {
					t.Errorf("part %+v, room for %d: chains of the tile of row %d: %d", part, most, row, done[row])
				}
			}
			if seen[row] != want {
				t.Errorf("part %+v, room for %d: tile of row %d sees %d queries, want %d", part, most, row, seen[row],
					want)
			}
		}
	}
}

// Gradients of keys are chains over queries, in each over steps of 16 heads ascending: two steps exchanged mean the
// same and give other bits.
func TestAbsorbedHeadOrder(t *testing.T) {
	a := absorbedShape(headDimsAbsorbed[2], 32)
	l, rows, _ := attend([]int{70}, 0)
	bf16 := func(cols int) cudatest.Operand { return cudatest.Normal(kernels.BF16, rows, cols, 1) }
	x := []cudatest.Operand{bf16(32 * 512), cudatest.Normal(kernels.F32, rows, 32, 1), bf16(32 * 576), bf16(576),
		bf16(32 * 512), bf16(32 * 576), bf16(576), bf16(512)}
	backward := func(d kernels.Device, x []kernels.Tensor) {
		d.Attention(x[0], x[1], x[2], shared(x[3], a, 0), l, a)
		d.AttentionBackward(x[5], x[6], x[7], x[4], x[0], x[1], x[2], shared(x[3], a, 0), l, a)
	}
	exchange := func(d kernels.Device, x kernels.Tensor) {
		other := kernels.NewArena(d).New(x.DType, x.Rows, x.Cols/2)
		d.Copy(other, x.ColRange(0, x.Cols/2))
		d.Copy(x.ColRange(0, x.Cols/2), x.ColRange(x.Cols/2, x.Cols))
		d.Copy(x.ColRange(x.Cols/2, x.Cols), other)
	}
	for _, exchanged := range []bool{false, true} {
		n, at := cudatest.Differences(t, x, backward, func(d kernels.Device, x []kernels.Tensor) {
			both := []int{2, 4, 0, 5} // q and dout before, out and dq after
			for _, i := range both[:2] {
				if exchanged {
					exchange(d, x[i])
				}
			}
			backward(d, x)
			for _, i := range both {
				if exchanged {
					exchange(d, x[i])
				}
			}
			if exchanged {
				exchange(d, x[1])
			}
		})
		if (n > 0) != exchanged {
			t.Error(fmt.Sprint("heads exchanged: ", exchanged, ": ", n, " bytes differ, first ", at))
		}
	}
}

// A sequence of NaN behind another, in the same blocks of queries and of keys, changes no bit of the other's gradients.
func TestAbsorbedNeighbours(t *testing.T) {
	const rows, behind = 70, 40
	a := absorbedShape(headDimsAbsorbed[2], 2)
	both, _, _ := attend([]int{rows, behind}, 0)
	alone, _, _ := attend([]int{rows}, 0)
	var x []kernels.Tensor
	for _, cols := range []int{2 * 512, 2 * 576, 576, 2 * 512, 2 * 576, 576, 512} { // out, q, k, dout, dq, dk, dv
		o := cudatest.Normal(kernels.BF16, rows+behind, cols, 1)
		for i := 2 * rows * cols; i < len(o.Raw); i++ {
			o.Raw[i] = 0xff
		}
		view, _ := o.On(cudatest.Card)
		x = append(x, view)
	}
	lse, _ := cudatest.Normal(kernels.F32, rows+behind, 2, 0).On(cudatest.Card)
	gradients := func(l *kernels.Layout) (raw []byte) {
		of := func(t kernels.Tensor) kernels.Tensor { return t.RowRange(0, l.Rows()) }
		kv := shared(of(x[2]), a, 0)
		cudatest.Card.Attention(of(x[0]), of(lse), of(x[1]), kv, l, a)
		cudatest.Card.AttentionBackward(of(x[4]), of(x[5]), of(x[6]), of(x[3]), of(x[0]), of(lse), of(x[1]), kv, l, a)
		for _, g := range x[4:] {
			part := make([]byte, 2*rows*g.Cols)
			cudatest.Card.Read(part, g.RowRange(0, rows))
			raw = append(raw, part...)
		}
		return raw
	}
	if !bytes.Equal(gradients(both), gradients(alone)) {
		t.Error("a sequence of NaN changes the gradients of the one before it")
	}
}
