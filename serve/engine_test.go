package serve

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Each sampling field of a request takes effect: changing one makes the sample greedy, or different.
func TestSamplingSettings(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		base := Request{Prompt: []int32{3, 4, 5}, MaxTokens: 24, Temperature: 1, TopP: 1, Seed: 5}
		sample := func(change func(q *Request)) []int32 {
			q := base
			change(&q)
			results, _ := generate(t, r, s, Options{Slots: 2, PageRows: 8, PrefillRows: 64}, []Request{q})
			return results[0].IDs
		}
		greedy := sample(func(q *Request) { q.Temperature = 0 })
		random := sample(func(*Request) {})
		if slices.Equal(greedy, random) {
			t.Fatal("the sample is greedy, so the test shows nothing")
		}
		for name, change := range map[string]func(q *Request){
			"top-k of 1": func(q *Request) { q.TopK = 1 }, "top-p of nearly 0": func(q *Request) { q.TopP = 1e-6 },
		} {
			if got := sample(change); !slices.Equal(got, greedy) {
				t.Errorf("%s gives %v, greedy is %v", name, got, greedy)
			}
		}
		if slices.Equal(sample(func(q *Request) { q.Seed = 6 }), random) {
			t.Error("another seed gives the same sample")
		}
		if slices.Equal(sample(func(q *Request) { q.ID = 1 }), random) {
			t.Error("another sample of the prompt has the same tokens")
		}
		// The random number of a token depends on its index in the sample.
		rest := sample(func(q *Request) {
			q.Prompt, q.MaxTokens = append(slices.Clone(q.Prompt), random[0]), q.MaxTokens-1
		})
		if slices.Equal(rest, random[1:]) {
			t.Error("tokens at different indices have the same random number")
		}
	})
}

// After Refresh nothing runs, and all requests wait in their old order.
func TestRefreshKeepsOrder(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		o := Options{Slots: 5, PageRows: 4, PrefillRows: 64}
		e := startEngine(t, r, s, o, groups(rand.New(rand.NewPCG(3, 4)), s.Model, 4, 3))
		for range 2 {
			if _, err := e.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		var want []int
		for _, q := range slices.Concat(e.running, e.waiting) {
			want = append(want, q.index)
		}
		if len(e.running) < 3 || len(e.waiting) < 3 {
			t.Fatalf("%d run and %d wait, so the test shows nothing", len(e.running), len(e.waiting))
		}
		e.Refresh(7)
		var got []int
		for _, q := range e.waiting {
			got = append(got, q.index)
			if q.cached != 0 || len(q.pages) != 0 {
				t.Errorf("sequence %d keeps %d rows and %d pages of the old weights", q.index, q.cached, len(q.pages))
			}
		}
		if len(e.running) != 0 || !slices.Equal(got, want) {
			t.Errorf("%d run; %v wait, want %v", len(e.running), got, want)
		}
		checkPages(t, e)
		for i, res := range finishAll(t, e) {
			for j, v := range res.Versions {
				if v != 0 && v != 7 || v == 0 && j > 1 {
					t.Errorf("request %d: token %d is of version %d", i, j, v)
				}
			}
			if last := len(res.Versions) - 1; last > 1 && res.Versions[last] != 7 {
				t.Errorf("request %d ends with version %d", i, res.Versions[last])
			}
		}
	})
}
