//go:build cuda

package cuda

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// A repeated sequence does what its body says each time: other parameters, other grids, other staged bytes, kernels
// that come and go, workspaces that grow. Kernels that come back find the graph that they had.
func TestRepeat(t *testing.T) {
	const rows, width, pageRows, pages = 3, 128, 64, 180
	a := kernels.Attn{Heads: 2, KVHeads: 1, HeadDim: 64, Scale: 0.125}
	operands := []cudatest.Operand{
		cudatest.Normal(kernels.BF16, rows, width, 1), cudatest.Normal(kernels.BF16, rows, width, 1),
		cudatest.Normal(kernels.F32, rows, 2, 1),
		cudatest.Normal(kernels.BF16, 50, width, 1),
		cudatest.Normal(kernels.BF16, pages*pageRows, 64, 1), cudatest.Normal(kernels.BF16, pages*pageRows, 64, 1),
		cudatest.Ints(1, rows, make([]int32, rows)),
	}
	rounds := func(d kernels.Device, x []kernels.Tensor) {
		sum, out, lse, table, kv, ids := x[0], x[1], x[2], x[3], kernels.KV{K: x[4], V: x[5], PageRows: pageRows}, x[6]
		for round := range 9 {
			kernels.Repeat(d, "decode", func() {
				d.Write(ids, []byte{byte(round), 0, 0, 0, 7, 0, 0, 0, byte(2 * round), 0, 0, 0})
				d.Gather(out, table, ids)
				d.Attention(out, lse, out, kv, cudatest.Decoding(rows, 2044+round*(1+round/5*500), pageRows), a)
				d.Scale(out, out, 1+float32(round)/8)
				if round == 4 || round == 7 {
					d.Add(out, out, sum)
				}
				d.Add(sum, sum, out)
			})
		}
	}
	r := cudatest.Card.(*Device)
	first, most := r.GraphSizes(1, 1)
	defer r.GraphSizes(first, most)
	for _, calls := range []int{1, 2, 3, 5, most} {
		r.GraphSizes(calls, calls)
		r.Forget("decode")
		before := r.Counts().Graphs
		cudatest.Both(t, "repeat", operands, rounds)
		if graphs := r.GraphCalls("decode"); len(graphs) < max(1, 5/calls) || graphs[0] < min(5, calls) {
			t.Errorf("no graphs of %d calls were made: %v", calls, graphs)
		}
		if n := r.Counts().Graphs - before; calls == most && n != 2 {
			t.Errorf("%d graphs were captured of two lists of kernels", n)
		}
	}
	if n, _ := cudatest.Differences(t, operands, rounds, func(d kernels.Device, x []kernels.Tensor) {
		rounds(stuck{d, new(int)}, x)
	}); n == 0 {
		t.Error("bodies left out are not noticed")
	}
}

// stuck is a device that leaves out all bodies after the third.
type stuck struct {
	kernels.Device
	round *int
}

func (s stuck) Repeat(_ string, body func()) {
	if *s.round++; *s.round <= 3 {
		body()
	}
}

// Three lists of kernels that alternate keep their graphs; of four none does, as the one is dropped that ran first.
func TestGraphsAreBounded(t *testing.T) {
	d := cudatest.Card.(*Device)
	x, _ := cudatest.Normal(kernels.F32, 4, 64, 1).On(d)
	for lists, want := range map[int]int{3: 3, 4: 8} {
		d.Forget("lists")
		before := d.Counts().Graphs
		for i := range 2 * lists {
			d.Repeat("lists", func() {
				for range 1 + i%lists {
					d.Scale(x, x, 1)
				}
			})
		}
		if got := d.Counts().Graphs - before; got != want {
			t.Errorf("%d lists of kernels, each twice: %d graphs were captured, want %d", lists, got, want)
		}
	}
}

// What a step of training or decoding asks of the card is counted.
func TestCounts(t *testing.T) {
	d := cudatest.Card.(*Device)
	x, _ := cudatest.Normal(kernels.F32, 4, 64, 1).On(d)
	before := d.Counts()
	d.Scale(x, x, 2)
	d.Scale(x, x, 2)
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	after := d.Counts()
	if after.Launches-before.Launches != 2 || after.Waits-before.Waits != 1 || after.Allocations != before.Allocations {
		t.Errorf("two kernels and a wait: from %+v to %+v", before, after)
	}
}
