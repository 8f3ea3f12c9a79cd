//go:build cuda

package cuda

import (
	"reflect"
	"testing"

	"lockstep/kernels"
)

// ascending is a row each of n sequences whose lengths grow by step.
func ascending(n, from, step, pageRows int) *kernels.Layout {
	l := &kernels.Layout{Packs: []int32{0, int32(n)}}
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
	def, plans := kernels.Default(), attentionPlans{}
	layouts := []*kernels.Layout{ascending(5, 100, 5, 16), ascending(5, 101, 5, 16)}
	shapes := []kernels.Attn{{Heads: 32, KVHeads: 4, HeadDim: 128}, {Heads: 32, KVHeads: 4, HeadDim: 128, Window: 64}}
	for turn, l := range []*kernels.Layout{layouts[0], layouts[1], layouts[0]} {
		for _, a := range shapes {
			for teams := range 2 {
				kv := kernels.KV{PageRows: 16}
				p := plans.of(def, kv, l, a, 2*teams)
				if want := planAttention(def, kv, l, a, 2*teams); !reflect.DeepEqual(p, want) {
					t.Errorf("turn %d: %+v, want %+v", turn, p, want)
				}
				if plans.of(def, kv, l, a, 2*teams) != p {
					t.Errorf("turn %d: the same layout is planned again", turn)
				}
			}
		}
	}
}

// BenchmarkPlan is what the host does for the attention of the first layer where 256 sequences decode, on the shape of Qwen3-30B-A3B.
func BenchmarkPlan(b *testing.B) {
	l, a := ascending(256, 100, 5, 64), kernels.Attn{Heads: 32, KVHeads: 4, HeadDim: 128}
	for b.Loop() {
		planAttention(kernels.Default(), kernels.KV{PageRows: 64}, l, a, 2)
	}
}
