package bench

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/model"
	"lockstep/train/plan"
	"lockstep/train/testshape"
)

// Bytes of the tiny shape.
const (
	tinyHead   = 480 * 32 * 4
	tinyExpert = 3 * 32 * 32 * 4 // gate, up, down
	tinyDense  = 4*32 + 2*4*(4*16*32+32*32+2*16+2*32+4*32)
	tinyToken  = 2 * 2 * 16 * 4 // keys and values of both layers
)

// The benchmark takes all tokens that were asked for, and its steps read what their parts add up to: one sequence at a
// time is sent to its own experts alone.
func TestBenchRollout(t *testing.T) {
	for _, c := range []struct {
		slots, topK int
		noCache     bool
	}{{6, 4, false}, {1, 2, false}, {6, 4, true}} {
		s, err := testshape.Parse([]string{fmt.Sprint("model.config.num_experts_per_tok=", c.topK),
			fmt.Sprint("rollout.slots=", c.slots), "rollout.page_rows=4", "rollout.prefill_rows=7"})
		if err != nil {
			t.Fatal(err)
		}
		o := RolloutOptions{Requests: 12, Samples: 3, Prompt: Span{5, 30}, New: Span{3, 9}, Seed: 2,
			NoPrefixCache: c.noCache}
		b, err := rolloutOurs(context.Background(), s, o, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range b.StepLoads {
			want := tinyDense + 2*c.topK*tinyExpert - l.Shared*tinyToken
			for _, n := range l.Lengths {
				want += n * tinyToken
			}
			if l.Generated > 0 {
				want += tinyHead
			}
			if exact := c.topK == 4 || l.Rows == 1; exact && b.reads[i] != want || b.reads[i] < want ||
				(b.reads[i]-want)%tinyExpert != 0 {
				t.Errorf("%+v: step %d of %+v reads %d bytes, want %d", c, i, l, b.reads[i], want)
			}
		}
		tokens := 0
		for _, q := range o.traffic(&model.Model{Vocab: 480}) {
			tokens += q.MaxTokens
		}
		var text bytes.Buffer
		if err := b.print(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), fmt.Sprintf("output tokens/s: %d in", tokens)) ||
			(b.Reused == 0) != (c.noCache) {
			t.Errorf("%+v: want %d tokens, %d rows were found in the cache\n%s", c, tokens, b.Reused, &text)
		}
	}
}

// A device's memory is what the plan says, with pages in 16 bits and in codes, which take less of it.
func TestBenchRolloutMemory(t *testing.T) {
	pages, codes := generation(t), generation(t, "definition.cache=mxfp8")
	generation(t, "model.weights=int4", "lora.rank=4")
	if 3*codes.Cache > 2*pages.Cache {
		t.Errorf("pages in codes take %d bytes, in bf16 %d", codes.Cache, pages.Cache)
	}
}

// generation is what the plan says of a benchmark of a tiny shape, which has to be what it took.
func generation(t *testing.T, set ...string) plan.Memory {
	t.Helper()
	s, err := testshape.Parse(append([]string{"model.dtype=bf16", "rollout.slots=6", "rollout.pages=64",
		"rollout.page_rows=16", "rollout.prefill_rows=32"}, set...))
	if err != nil {
		t.Fatal(err)
	}
	o := RolloutOptions{Requests: 12, Samples: 3, Prompt: Span{5, 40}, New: Span{3, 9}, Seed: 2}
	b, err := rolloutOurs(context.Background(), s, o, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if b.taken != b.planned.Device() || b.taken < 1<<16 {
		t.Errorf("%v: took %d bytes, planned %d (%+v)", set, b.taken, b.planned.Device(), b.planned)
	}
	return b.planned
}

func TestBenchRolloutTooLong(t *testing.T) {
	s, err := testshape.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	o := RolloutOptions{Requests: 1, Samples: 1, Prompt: Span{100, 100}, New: Span{1, 29}}
	if err := Rollout(context.Background(), s, o); err == nil || !strings.Contains(err.Error(), "129 positions") {
		t.Error(err)
	}
}

func TestSpan(t *testing.T) {
	for text, want := range map[string]Span{"7": {7, 7}, "64..512": {64, 512}, "3..3": {3, 3}, "": {}, "0": {},
		"5..4": {}, "1..": {}, "a..9": {}, "1..2..3": {}} {
		var s Span
		if err := s.Set(text); (err != nil) != (want == Span{}) || s != want {
			t.Errorf("%q is %v, want %v (%v)", text, s, want, err)
		}
	}
	s, rng, seen := Span{4, 6}, rand.New(rand.NewPCG(1, 1)), map[int]bool{}
	for range 100 {
		seen[s.draw(rng)] = true
	}
	if len(seen) != 3 || !seen[4] || !seen[6] || s.String() != "4..6" {
		t.Errorf("%v gives %v", &s, seen)
	}
}

func TestPercentile(t *testing.T) {
	v := []float64{}
	for i := range 200 {
		v = append(v, float64(i+1))
	}
	if got := []float64{percentile(v, 50), percentile(v, 95), percentile(v, 99), percentile(v[:1], 50)}; !slices.Equal(
		got, []float64{100, 190, 198, 1}) || !math.IsNaN(percentile(nil, 50)) {
		t.Errorf("%v", got)
	}
}
