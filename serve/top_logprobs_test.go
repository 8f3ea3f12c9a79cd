package serve

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Listed tokens are the most likely ones in order, the sampled token's entry has its bits, a row's entries sum to 1
// with all of the vocabulary, and lists change nothing else.
func TestTopLogProbs(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		prompt := goldenIDs(t, "qwen3_moe", "ids.1")[:6]
		var plain, listed []Request
		for i, top := range []int{0, 3, s.Model.Vocab, 1} {
			q := Request{ID: uint64(i), Prompt: prompt[:3+i], MaxTokens: 5, Temperature: 0.7, TopP: 1, Seed: 4}
			plain = append(plain, q)
			q.TopLogProbs = top
			listed = append(listed, q)
		}
		o := Options{Slots: 4, PageRows: 16, PrefillRows: 8}
		want, _ := generate(t, r, s, o, plain)
		got, _ := generate(t, r, s, o, listed)
		for i, res := range got {
			if !slices.Equal(res.IDs, want[i].IDs) || !slices.Equal(res.LogProbs, want[i].LogProbs) {
				t.Errorf("request %d: lists changed what is drawn", i)
			}
			if top := listed[i].TopLogProbs; top == 0 && res.TopLogProbs != nil || top > 0 &&
				len(res.TopLogProbs) != len(res.IDs) {
				t.Fatalf("request %d: %d lists", i, len(res.TopLogProbs))
			}
			for k, list := range res.TopLogProbs {
				checkList(t, list, listed[i].TopLogProbs, res.IDs[k], res.LogProbs[k], s.Model.Vocab)
			}
		}
	})
}

func checkList(t *testing.T, list []TokenLogProb, top int, id int32, logprob float32, vocab int) {
	t.Helper()
	if len(list) != top || !slices.IsSortedFunc(list, func(a, b TokenLogProb) int {
		return -cmp.Compare(a.LogProb, b.LogProb)
	}) {
		t.Errorf("%d of %d entries, or not in order: %v", len(list), top, list[:min(4, len(list))])
	}
	sum := 0.0
	for _, l := range list {
		sum += math.Exp(float64(l.LogProb))
		if l.ID == id && l.LogProb != logprob {
			t.Errorf("token %d is listed with %v and was drawn with %v", id, l.LogProb, logprob)
		}
	}
	if len(list) == vocab && math.Abs(sum-1) > 1e-5 {
		t.Errorf("probabilities sum to %v", sum)
	}
}

func TestLargest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		x, n := make([]float32, 1+rng.IntN(40)), 1+rng.IntN(10)
		order := make([]int32, len(x))
		for i := range x {
			x[i], order[i] = float32(rng.IntN(6)), int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int { return -cmp.Compare(x[a], x[b]) })
		if got := largest(x, n); !slices.Equal(got, order[:min(n, len(x))]) {
			t.Fatalf("%d of %v: %v, want %v", n, x, got, order)
		}
	}
}
