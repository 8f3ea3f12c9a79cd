package serve

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/model"
	"lockstep/parallel"
)

// The logits that sample tokens of requests that keep them, on any replicas and behind preemptions, are those of the
// training forward, all of them; one that differs in a bit is counted and has a KL.
func TestKeepLogits(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		o := Options{Slots: 3, PageRows: 4, Pages: 17, PrefillRows: 16}
		replicas(t, ranks, o, func(w *parallel.World, m *model.Model, p *Replicas) {
			reqs := groups(rand.New(rand.NewPCG(3, 4)), m, 6, 5)
			for i := range reqs {
				reqs[i].KeepLogits = i%3 == 1
			}
			results, err := p.Run(context.Background(), reqs)
			if err != nil {
				t.Fatal(err)
			}
			kept, tokens := p.TakeKept(), 0
			for i, res := range results {
				if !reqs[i].KeepLogits {
					continue
				}
				for n := range res.IDs {
					k, before := kept[tokens+n], fmt.Sprint(slices.Concat(reqs[i].Prompt, res.IDs[:n]))
					if k.Index != i || fmt.Sprint(k.Before) != before || k.Temperature != reqs[i].Temperature {
						t.Fatalf("token %d of request %d: %d, behind %v, want %s", n, i, k.Index, k.Before, before)
					}
				}
				tokens += len(res.IDs)
			}
			if len(kept) != tokens || len(p.TakeKept()) > 0 || p.Counters().Preempted == 0 {
				t.Fatalf("%d logits kept of %d tokens, and then %d more, behind %d preemptions", len(kept), tokens,
					len(p.TakeKept()), p.Counters().Preempted)
			}
			r := p.First().r
			if d := MeasureDivergence(r, m, kept); d != (Divergence{Logits: tokens * m.Vocab}) {
				t.Errorf("%d ranks: %+v, of %d tokens", ranks, d, tokens)
			}
			x := &kept[len(kept)/2].Logits[5]
			*x = math.Nextafter32(*x, 99)
			if d := MeasureDivergence(r, m, kept); d.Mismatches != 1 || !(d.KL > 0) || d.Logits != tokens*m.Vocab {
				t.Errorf("a logit in another bit: %+v", d)
			}
		})
	}
}

// Of several sequences the KL is the mean of theirs, each the mean of its tokens.
func TestDivergenceMean(t *testing.T) {
	o := Options{Slots: 4, PageRows: 4, PrefillRows: 16}
	replicas(t, 1, o, func(_ *parallel.World, m *model.Model, p *Replicas) {
		var reqs []Request
		for i := range 2 {
			reqs = append(reqs, Request{ID: uint64(i), Prompt: []int32{1, 2, 3}, MaxTokens: 2 + 3*i, Temperature: 1,
				TopP: 1, KeepLogits: true})
		}
		if _, err := p.Run(context.Background(), reqs); err != nil {
			t.Fatal(err)
		}
		kept, sum := p.TakeKept(), 0.0
		for i := range kept {
			kept[i].Logits[1]++
			one := MeasureDivergence(p.First().r, m, kept[i:i+1])
			sum += one.KL / float64(2*reqs[kept[i].Index].MaxTokens)
		}
		if d := MeasureDivergence(p.First().r, m, kept); math.Abs(d.KL-sum) > 1e-12 || sum == 0 || d.Mismatches != 7 {
			t.Errorf("%+v, want a KL of %g", d, sum)
		}
	})
}
