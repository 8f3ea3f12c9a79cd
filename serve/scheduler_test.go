package serve

import (
	"context"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// prompts makes greedy requests with prompts of these lengths.
func prompts(lengths ...int) (reqs []Request) {
	for i, n := range lengths {
		q := Request{ID: uint64(i), MaxTokens: 20, TopP: 1}
		for j := range n {
			q.Prompt = append(q.Prompt, int32(10*i+j+1))
		}
		reqs = append(reqs, q)
	}
	return reqs
}

// Rows that decode do not count against the prefill budget.
func TestDecodingLeavesTheBudget(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		e := startEngine(t, r, s, Options{Slots: 8, PageRows: 4, PrefillRows: 3, Pages: 64}, prompts(1, 1, 1, 1, 5))
		var steps [][]int // rows of each step, by sequence
		e.onStep = func(batch []scheduled, _ []*sequence) {
			var rows []int
			for _, w := range batch {
				rows = append(rows, w.rows)
			}
			steps = append(steps, rows)
		}
		for range 4 {
			if _, err := e.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		want := [][]int{{1, 1, 1}, {1, 1, 1, 1, 2}, {1, 1, 1, 1, 3}, {1, 1, 1, 1, 1}}
		if !slices.EqualFunc(steps, want, slices.Equal[[]int]) {
			t.Errorf("rows of the steps %v, want %v", steps, want)
		}
	})
}

// Preempted sequences wait in front of new ones, in their order.
func TestPreemptedFirst(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		e := startEngine(t, r, s, Options{Slots: 2, PageRows: 4, PrefillRows: 8, Pages: 64}, prompts(2, 3, 4, 2))
		for range 2 {
			if _, err := e.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		e.Refresh(1)
		var order []int
		for _, p := range e.Pending() {
			order = append(order, p.Index)
		}
		if want := []int{0, 1, 2, 3}; !slices.Equal(order, want) {
			t.Errorf("requests wait in the order %v, want %v", order, want)
		}
	})
}
