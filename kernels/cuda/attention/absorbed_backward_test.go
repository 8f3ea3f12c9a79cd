//go:build cuda

package attention

import (
	"bytes"
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
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
// of a pass: room for two heads, for one, for some of its blocks of queries and for one of them; blocks that go from
// tile to tile and meet some of which no pair is on a list.
func TestAbsorbedBackwardPasses(t *testing.T) {
	d := cudatest.GPU
	defer func(room, processors int) { d.ChunkBytes, d.Processors = room, processors }(d.ChunkBytes, d.Processors)
	a := absorbedShape(headDimsAbsorbed[2], 3)
	spans := []int{190, 5}
	const head = 2 * (3 + 1 + 1) * unitBytes // P and dS of these sequences
	for i, room := range []int{2 * head, head, head / 2, 1} {
		d.ChunkBytes, d.Processors = room, []int{1, 2, 132, 3}[i]
		absorbedLayer(t, a, spans, 20*(i%2), true) // dense, and lists
	}
}

// Passes go over every unit once; those of a tile of keys come heads ascending, in each queries ascending.
func TestKeyPasses(t *testing.T) {
	l, _, _ := attend([]int{130, 1, 700, 64}, 0)
	const heads = 5
	_, all := keyTiles(l, allKeys(l), 0, driver.Blocks(longest(l), keyRows))
	for _, most := range []int{heads * all, 3 * all, all, all - 1, all / 3, 4, 1} {
		next := map[[2]int32][2]int{} // of a tile: head, block of queries
		for _, p := range keyPasses(l, allKeys(l), heads, most) {
			first, largest := 0, 0
			for _, k := range p.tiles {
				if int(k.first) != first {
					t.Fatalf("room for %d: a tile's units begin at %d, want %d", most, k.first, first)
				}
				first += int(k.count)
				largest = max(largest, queryUnits(l, allKeys(l), int(k.from)))
			}
			if p.units != p.heads*first || p.units > max(most, largest) {
				t.Errorf("room for %d: %d units of %d heads and %d blocks", most, p.units, p.heads, first)
			}
			for h := p.head; h < p.head+p.heads; h++ {
				for _, k := range p.tiles {
					id, last := [2]int32{k.row, k.at}, driver.Blocks(int(k.rows), keyRows)
					at, some := next[id]
					if !some {
						at[1] = int(k.at) / keyRows
					}
					if at != [2]int{h, int(k.from)} {
						t.Fatalf("room for %d: tile %v is at head %d, block %d, want %v", most, id, h, k.from, at)
					}
					if at[1] += int(k.count); at[1] == last {
						at = [2]int{h + 1, int(k.at) / keyRows}
					}
					next[id] = at
				}
			}
		}
		for id, at := range next {
			if at != [2]int{heads, int(id[1]) / keyRows} {
				t.Errorf("room for %d: tile %v ends at %v", most, id, at)
			}
		}
		if len(next) != 2+1+6+1 {
			t.Errorf("room for %d: %d tiles", most, len(next))
		}
	}
}

// Gradients of keys are chains over heads ascending: two heads exchanged mean the same and give other bits.
func TestAbsorbedHeadOrder(t *testing.T) {
	a := absorbedShape(headDimsAbsorbed[2], 2)
	l, rows, _ := attend([]int{70}, 0)
	bf16 := func(cols int) cudatest.Operand { return cudatest.Normal(kernels.BF16, rows, cols, 1) }
	x := []cudatest.Operand{bf16(2 * 512), cudatest.Normal(kernels.F32, rows, 2, 1), bf16(2 * 576), bf16(576),
		bf16(2 * 512),
		bf16(2 * 576),
		bf16(576), bf16(512)}
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
