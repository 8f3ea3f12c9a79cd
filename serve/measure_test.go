package serve

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// A run that is measured gives every token once, and its steps hold the sequences that they worked on.
func TestMeasure(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		reqs := groups(rand.New(rand.NewPCG(1, 1)), s.Model, 5, 6)
		tokens, prompts := 0, 0
		for _, q := range reqs {
			tokens, prompts = tokens+q.MaxTokens, prompts+len(q.Prompt)
		}
		e := start(t, r, s, Options{Slots: 9, PageRows: 4, PrefillRows: 30}, nil)
		for range 2 { // counters are of the run
			m, err := e.Measure(context.Background(), reqs)
			if err != nil {
				t.Fatal(err)
			}
			drawn, rows, most, shared, seconds := 0, 0, 0, 0, 0.0
			for _, l := range m.Loads {
				drawn, rows, most, shared, seconds = drawn+l.Drawn, rows+l.Rows, max(most, len(l.Lengths)),
					max(shared, l.Shared), seconds+l.Seconds
				held := -l.Shared // whole pages but for the last of each sequence
				for _, n := range l.Lengths {
					held += (n + 3) / 4 * 4
				}
				if held != 4*l.Pages || l.Rows > 30+8 || l.Drawn > len(l.Lengths) {
					t.Errorf("%+v", l)
				}
			}
			if drawn != tokens || rows != m.Prefilled+m.Decoded || m.Prefilled+m.Reused != prompts ||
				m.Steps != len(m.Loads) || most != 9 || shared == 0 {
				t.Errorf("drawn %d of %d, %d rows, %d sequences, %d shared: %+v", drawn, tokens, rows, most, shared,
					m.Counters)
			}
			if len(m.First) != len(reqs) || len(m.Between) != tokens-len(reqs) || !slices.IsSorted(m.First) ||
				m.First[0] <= 0 || seconds > m.Seconds || seconds < m.Seconds/2 {
				t.Errorf("%d first tokens from %v, %d others, %v s in steps of %v", len(m.First), m.First[:1],
					len(m.Between), seconds, m.Seconds)
			}
		}
		reqs[3].Prompt = nil
		if _, err := e.Measure(context.Background(), reqs); err == nil || e.InFlight() != 0 {
			t.Errorf("a bad request was taken, or others wait: %v", err)
		}
	})
}

// BenchmarkHost is what a step of decoding costs beside the device's work: the schedule, the layout and the settings of
// 256 sequences.
func BenchmarkHost(b *testing.B) {
	const n, prompt, rows = 256, 512, 64
	e := &Engine{o: Options{Slots: n, PageRows: rows, Pages: n * 64, PrefillRows: n * prompt},
		pages: newPages(n*64, rows), shares: true}
	for i := range n {
		e.slots = append(e.slots, n-1-i)
	}
	fill := func() {
		for i := range n {
			s := &sequence{index: i, req: Request{ID: uint64(i), TopP: 1}}
			for t := range prompt {
				s.tokens = append(s.tokens, int32(i+t))
			}
			e.waiting = append(e.waiting, s)
		}
	}
	fill()
	step := 0
	for b.Loop() {
		if step++; step%1024 == 0 { // answers end, others begin
			for len(e.running) > 0 {
				e.yield(e.running[len(e.running)-1])
			}
			e.waiting = nil
			fill()
		}
		works := e.schedule()
		e.layout(works)
		samplings(e.running)
		for _, w := range works {
			w.s.cached += w.rows
			w.s.tokens = append(w.s.tokens, int32(step))
		}
	}
}
