package serve

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// What an engine says of pages for fewer of the longest sequences than it has slots is so: as many run at a time, and
// with the pages that it asks for all do.
func TestShortage(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		const slots, longest = 7, 13 // 4 pages of 4 positions
		running := func(pages int) (int, string) {
			o := Options{Slots: slots, PageRows: 4, Pages: pages, MaxLength: longest, PrefillRows: 1000}
			var reqs []Request
			for i := range slots {
				prompt := make([]int32, longest)
				for j := range prompt {
					prompt[j] = int32(i + j + 3)
				}
				reqs = append(reqs, Request{Prompt: prompt, MaxTokens: 1, TopP: 1})
			}
			e := startEngine(t, r, s, o, reqs)
			e.schedule()
			return len(e.running), e.Shortage()
		}
		for pages, fits := range map[int]int{4: 1, 11: 2, 16: 4, 17: 4, 20: 4, 21: 5, 28: 6, 29: 7, 0: 7} {
			want := ""
			if fits < slots {
				want = fmt.Sprintf("rollout: 7 slots, but %d pages of 4 positions hold %d sequences of 13 positions, "+
					"the longest: set rollout.pages to 29 for all slots", pages, fits)
			}
			if n, got := running(pages); n != fits || got != want {
				t.Errorf("%d pages: %d sequences run; %q, want %q", pages, n, got, want)
			}
		}
	})
}
