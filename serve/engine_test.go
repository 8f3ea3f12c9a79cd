package serve

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// What a request says of sampling reaches the device: one key at a time makes an answer greedy, or another one.
func TestSamplingSettings(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		base := Request{Prompt: []int32{3, 4, 5}, MaxTokens: 24, Temperature: 1, TopP: 1, Seed: 5}
		answer := func(change func(q *Request)) []int32 {
			q := base
			change(&q)
			results, _ := generate(t, r, s, Options{Slots: 2, PageRows: 8, PrefillRows: 64}, []Request{q})
			return results[0].IDs
		}
		greedy := answer(func(q *Request) { q.Temperature = 0 })
		free := answer(func(*Request) {})
		if slices.Equal(greedy, free) {
			t.Fatal("samples are greedy: the test cannot fail")
		}
		for name, change := range map[string]func(q *Request){
			"top-k of 1": func(q *Request) { q.TopK = 1 }, "top-p of nearly 0": func(q *Request) { q.TopP = 1e-6 },
		} {
			if got := answer(change); !slices.Equal(got, greedy) {
				t.Errorf("%s gives %v, greedy is %v", name, got, greedy)
			}
		}
		if slices.Equal(answer(func(q *Request) { q.Seed = 6 }), free) {
			t.Error("another seed gives the same answer")
		}
		if slices.Equal(answer(func(q *Request) { q.ID = 1 }), free) {
			t.Error("another sample of the prompt gives the same answer")
		}
		// Each token has a random number of its own: one that is drawn first is not what is drawn second.
		rest := answer(func(q *Request) {
			q.Prompt, q.MaxTokens = append(slices.Clone(q.Prompt), free[0]), q.MaxTokens-1
		})
		if slices.Equal(rest, free[1:]) {
			t.Error("a sample goes on by the random numbers that it began with")
		}
	})
}

// After Refresh nothing runs, and what waits is asked again in the order of before.
func TestRefreshKeepsOrder(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		o := Options{Slots: 5, PageRows: 4, PrefillRows: 64}
		e := start(t, r, s, o, groups(rand.New(rand.NewPCG(3, 4)), s.Model, 4, 3))
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
			t.Fatalf("%d run and %d wait: the test cannot fail", len(e.running), len(e.waiting))
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
		consistent(t, e)
		for i, res := range finish(t, e) {
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
