package serve

import (
	"testing"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Without a number of pages the cache has room for all slots at MaxLength and for the page that admission leaves free.
func TestPagesForMaxLength(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		full := 5*((s.Model.MaxLength+15)/16) + 1
		for longest, want := range map[int]int{0: full, 33: 5*3 + 1, 32: 5*2 + 1, 1 << 20: full} {
			mem := kernels.NewArena(r.Dev)
			e, err := NewEngine(r, s.Model, mem, Options{Slots: 5, PageRows: 16, PrefillRows: 8, MaxLength: longest})
			if err != nil {
				t.Fatal(err)
			}
			if e.options.Pages != want {
				t.Errorf("longest %d: %d pages, want %d", longest, e.options.Pages, want)
			}
			if mem.Held() != mem.Peak() {
				t.Errorf("longest %d: the cache holds %d bytes and needs %d", longest, mem.Held(), mem.Peak())
			}
		}
	})
}

// The planned step takes at least the stack memory that steps of any traffic take.
func TestPlanLargestStep(t *testing.T) {
	for _, family := range []string{"qwen3_moe", "glm5", "nemotron_h"} {
		served(t, family, kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
			o := Options{Slots: 3, PageRows: 8, PrefillRows: 16}
			counted := r.WithDevice(r.Dev.(kernels.Planner).Meta())
			m, err := s.Model.EmptyCopy(counted.Dev, s.Model.DType, model.Encode{})
			if err != nil {
				t.Fatal(err)
			}
			planned, err := NewEngine(counted, m, kernels.NewArena(counted.Dev), o)
			if err != nil {
				t.Fatal(err)
			}
			planned.PlanLargestStep(false)
			e, err := NewEngine(r, s.Model, kernels.NewArena(r.Dev), o)
			if err != nil {
				t.Fatal(err)
			}
			var reqs []Request
			for i := range 7 {
				reqs = append(reqs, Request{ID: uint64(i), Prompt: make([]int32, 3+5*i), MaxTokens: 4 + i, TopP: 1})
			}
			if _, err := e.Run(t.Context(), reqs); err != nil {
				t.Fatal(err)
			}
			if took, said := r.Stack.Peak(), counted.Stack.Peak(); took > said || took < said/2 {
				t.Errorf("%s: steps took %d bytes, the plan says %d", family, took, said)
			}
		})
	}
}
