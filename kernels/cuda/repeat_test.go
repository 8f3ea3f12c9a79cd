//go:build cuda

package cuda

import (
	"fmt"
	"testing"
	"time"

	"lockstep/kernels"
)

// A repeated sequence does what its body says each time: other parameters, other grids, other staged bytes, kernels
// that come and go, workspaces that grow.
func TestRepeat(t *testing.T) {
	const rows, width, pageRows, pages = 3, 128, 64, 180
	a := kernels.Attn{Heads: 2, KVHeads: 1, HeadDim: 64, Scale: 0.125}
	operands := []operand{
		normal(kernels.BF16, rows, width, 1), normal(kernels.BF16, rows, width, 1), normal(kernels.F32, rows, 2, 1),
		normal(kernels.BF16, 50, width, 1),
		normal(kernels.BF16, pages*pageRows, 64, 1), normal(kernels.BF16, pages*pageRows, 64, 1),
		ints(1, rows, make([]int32, rows)),
	}
	turns := func(d kernels.Device, x []kernels.Tensor) {
		sum, out, lse, table, kv, ids := x[0], x[1], x[2], x[3], kernels.KV{K: x[4], V: x[5], PageRows: pageRows}, x[6]
		for turn := range 9 {
			kernels.Repeat(d, "decode", func() {
				d.Write(ids, []byte{byte(turn), 0, 0, 0, 7, 0, 0, 0, byte(2 * turn), 0, 0, 0})
				d.Gather(out, table, ids)
				d.Attention(out, lse, out, kv, decoding(rows, 2044+turn*(1+turn/5*500), pageRows), a)
				d.Scale(out, out, 1+float32(turn)/8)
				if turn == 4 || turn == 7 {
					d.Add(out, out, sum)
				}
				d.Add(sum, sum, out)
			})
		}
	}
	r := card.(*Device)
	first, most := r.GraphSizes(1, 1)
	defer r.GraphSizes(first, most)
	for _, calls := range []int{1, 2, 3, 5, most} {
		r.GraphSizes(calls, calls)
		both(t, "repeat", operands, turns)
		if graphs := r.GraphCalls("decode"); len(graphs) < max(1, 5/calls) || graphs[0] < min(5, calls) {
			t.Errorf("no graphs of %d calls were made: %v", calls, graphs)
		}
	}
	if n, _ := differences(t, operands, turns, func(d kernels.Device, x []kernels.Tensor) {
		turns(stuck{d, new(int)}, x)
	}); n == 0 {
		t.Error("bodies left out are not noticed")
	}
}

// decoding is one row each of sequences whose keys end before positions up to pos.
func decoding(rows, pos, pageRows int) *kernels.Layout {
	l := &kernels.Layout{Packs: []int32{0, int32(rows)}}
	page := int32(0)
	for i := range rows {
		s := kernels.Span{Row: i, Rows: 1, Pos: pos / (i + 1)}
		for range s.Pos/pageRows + 1 {
			s.Pages = append(s.Pages, page)
			page++
		}
		l.Spans = append(l.Spans, s)
	}
	return l
}

// stuck is a device that leaves out all bodies after the third.
type stuck struct {
	kernels.Device
	turn *int
}

func (s stuck) Repeat(_ string, body func()) {
	if *s.turn++; *s.turn <= 3 {
		body()
	}
}

// The dense operations of a layer of Qwen3-30B-A3B with LoRA for 118 sequences that decode: what the host does for
// them, what the card, and both with one after the other.
func BenchmarkRepeat(b *testing.B) {
	// of which no cache holds the weights
	const rows, hidden, heads, kv, rank, experts, layers = 118, 2048, 4096, 1024, 16, 128, 12
	d := card.(*Device)
	defer d.Release(d.Held())
	mem := kernels.NewArena(d)
	random := func(rows, cols int) kernels.Tensor {
		t := mem.New(kernels.BF16, rows, cols)
		d.fillRandom(t)
		return t
	}
	type layer struct{ norm, qkvA, qkv, qkvB, outA, out, outB, router kernels.Tensor }
	var all []layer
	for range layers {
		all = append(all, layer{random(1, hidden), random(2*rank, hidden), random(heads+kv, hidden),
			random(heads+kv, rank), random(rank, heads), random(hidden, heads), random(hidden, rank),
			random(experts, hidden)})
	}
	x, n, u, y, v, z, logits := random(rows, hidden), random(rows, hidden), random(rows, 2*rank),
		random(rows, heads+kv), random(rows, rank), random(rows, hidden), mem.New(kernels.F32, rows, experts)
	rstd := mem.New(kernels.F32, 1, rows)
	body := func() {
		for _, l := range all {
			d.RMSNorm(n, rstd, x, l.norm, kernels.Norm{Eps: 1e-6})
			d.MatMul(u, nil, kernels.Term{X: n, W: l.qkvA})
			d.Scale(u, u, 1./64)
			q, k := u.ColRange(0, rank), u.ColRange(rank, 2*rank)
			d.MatMul(y, nil, kernels.Term{X: n, W: l.qkv}, kernels.Term{X: q, W: l.qkvB.RowRange(0, heads), To: heads},
				kernels.Term{X: k, W: l.qkvB.RowRange(heads, heads+kv), From: heads, To: heads + kv})
			d.MatMul(v, nil, kernels.Term{X: y.ColRange(0, heads), W: l.outA})
			d.Scale(v, v, 1./64)
			d.MatMul(z, nil, kernels.Term{X: y.ColRange(0, heads), W: l.out}, kernels.Term{X: v, W: l.outB})
			d.Add(x, x, z)
			d.RMSNorm(n, rstd, x, l.norm, kernels.Norm{Eps: 1e-6})
			d.MatMul(logits, nil, kernels.Term{X: n, W: l.router})
		}
	}
	const turns = 50
	host, whole := 0., d.time(100*time.Millisecond, func() { d.Repeat("layers", body) })
	for range turns {
		d.Wait()
		start := time.Now()
		d.Repeat("layers", body)
		host += time.Since(start).Seconds() / turns
	}
	card := d.timeGraph(100*time.Millisecond, body)
	fmt.Printf("a layer of 10 calls: %.1f us, of which the host takes %.1f; the card alone %.1f\n", whole/layers*1e6,
		host/layers*1e6, card/layers*1e6)
}

// What a step of training or decoding asks of the card is counted.
func TestCounts(t *testing.T) {
	d := card.(*Device)
	x, _ := normal(kernels.F32, 4, 64, 1).on(d)
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
