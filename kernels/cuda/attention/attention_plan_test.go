//go:build cuda

package attention

import (
	"reflect"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// ascending is a row each of n sequences whose lengths grow by step.
func ascending(n, from, step, pageRows int) *kernels.Layout {
	l := &kernels.Layout{Segments: []int32{0, int32(n)}}
	for i := range n {
		s := kernels.Span{Row: i, Rows: 1, Pos: from + i*step}
		for p := range s.Pos/pageRows + 1 {
			s.Pages = append(s.Pages, int32(i*64+p))
		}
		l.Spans = append(l.Spans, s)
	}
	return l
}

// A plan serves the layers of one layout and shape, and no other's.
func TestPlansAreOfTheirLayout(t *testing.T) {
	def, plans := kernels.Default(), attentionPlans{latest[planShape, *attentionPlan]{}}
	layouts := []*kernels.Layout{ascending(5, 100, 5, 16), ascending(5, 101, 5, 16)}
	shapes := []kernels.Attn{{Heads: 32, KVHeads: 4, HeadDim: 128}, {Heads: 32, KVHeads: 4, HeadDim: 128, Window: 64}}
	for round, l := range []*kernels.Layout{layouts[0], layouts[1], layouts[0]} {
		for _, a := range shapes {
			for teams := range 2 {
				kv := kernels.KV{PageRows: 16}
				p := plans.of(def, kv, l, a, 2*teams, 1<<20)
				if want := planAttention(def, kv, l, a, 2*teams, 1<<20); !reflect.DeepEqual(p, want) {
					t.Errorf("round %d: %+v, want %+v", round, p, want)
				}
				if plans.of(def, kv, l, a, 2*teams, 1<<20) != p {
					t.Errorf("round %d: the same layout is planned again", round)
				}
			}
		}
	}
	kv := kernels.KV{PageRows: 16}
	if plans.of(def, kv, layouts[0], shapes[0], 0, 1<<20) == plans.of(def, kv, layouts[0], shapes[0], 0, 1<<19) {
		t.Error("a plan is for another room")
	}
}

// Partial results take bounded memory however long a sequence is, and a call for each piece of it gives the same bits.
func TestAttentionCalls(t *testing.T) {
	def, latent := kernels.Default(), kernels.Attn{Heads: 64, KVHeads: 64, HeadDim: 192, ValueDim: 128}
	const rows, room = 65536, 256 << 20
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: rows}}, Segments: []int32{0, rows}}
	p := planAttention(def, kernels.KV{}, l, latent, 0, room)
	tiles := map[int32]int32{} // keys seen by the queries from a position on
	for _, c := range p.many.calls {
		for _, x := range c.tiles {
			tiles[x.from] += x.last - x.first
			if x.slot >= c.slots || x.slot >= p.many.slots {
				t.Fatalf("slot %d of %d", x.slot, c.slots)
			}
		}
	}
	for at := int32(0); at < rows; at += attentionRows {
		if tiles[at] != at+attentionRows {
			t.Fatalf("queries from %d see %d keys", at, tiles[at])
		}
	}
	if got := int(p.many.slots) * p.many.slotBytes(latent); got > room || len(p.many.calls) < 2 {
		t.Errorf("%d bytes in %d calls", got, len(p.many.calls))
	}

	d := New(cudatest.GPU)
	defer func(room int) { d.ChunkBytes = room }(d.ChunkBytes)
	for _, a := range []kernels.Attn{{Heads: 2, KVHeads: 2, HeadDim: 24, ValueDim: 16, Scale: 0.2},
		{Heads: 2, KVHeads: 2, HeadDim: 24, Scale: 0.2}, {Heads: 4, KVHeads: 2, HeadDim: 64, Scale: 0.125}} {
		t.Run(widths(a), func(t *testing.T) {
			const pageRows, rows = 64, 3
			d.ChunkBytes = 1
			l := cudatest.Decoding(rows, 6200, pageRows) // of four, two and two splits
			if got := planAttention(def, kernels.KV{PageRows: pageRows}, l, a, d.teams(a),
				4*d.ChunkBytes); len(got.few.calls)+len(got.many.calls) != rows {
				t.Fatalf("%d and %d calls", len(got.few.calls), len(got.many.calls))
			}
			pages := 0
			for _, s := range l.Spans {
				pages += len(s.Pages)
			}
			cudatest.Both(t, "a call for each", []cudatest.Operand{cudatest.Normal(kernels.BF16, rows,
				a.Heads*a.Values(), 1),
				cudatest.Normal(kernels.F32, rows, a.Heads, 1), cudatest.Normal(kernels.BF16, rows, a.Heads*a.HeadDim,
					1),
				cudatest.Normal(kernels.BF16, pages*pageRows, a.KVHeads*a.HeadDim, 1), cudatest.Normal(kernels.BF16,
					pages*pageRows,
					a.KVHeads*a.Values(), 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Attention(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4], PageRows: pageRows}, l, a)
				})
		})
	}
}

// BenchmarkPlan is the CPU overhead of the attention of the first layer where 256 sequences decode, on the shape of
// Qwen3-30B-A3B.
func BenchmarkPlan(b *testing.B) {
	l, a := ascending(256, 100, 5, 64), kernels.Attn{Heads: 32, KVHeads: 4, HeadDim: 128}
	for b.Loop() {
		planAttention(kernels.Default(), kernels.KV{PageRows: 64}, l, a, 2, 1<<30)
	}
}
