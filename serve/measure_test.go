package serve

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// A measurement counts every token once, and the loads of its steps match the sequences.
func TestMeasure(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		reqs := groups(rand.New(rand.NewPCG(1, 1)), s.Model, 5, 6)
		tokens, prompts := 0, 0
		for _, q := range reqs {
			tokens, prompts = tokens+q.MaxTokens, prompts+len(q.Prompt)
		}
		e := startEngine(t, r, s, Options{Slots: 9, PageRows: 4, PrefillRows: 30}, nil)
		for range 2 { // counters are of the run
			m, err := e.Measure(context.Background(), reqs)
			if err != nil {
				t.Fatal(err)
			}
			generated, rows, most, shared, seconds := 0, 0, 0, 0, 0.0
			for _, l := range m.StepLoads {
				generated, rows, most, shared, seconds = generated+l.Generated, rows+l.Rows, max(most, len(l.Lengths)),
					max(shared, l.Shared), seconds+l.Seconds
				held := -l.Shared // full pages, except the last of each sequence
				for _, n := range l.Lengths {
					held += (n + 3) / 4 * 4
				}
				if held != 4*l.Pages || l.Rows > 30+8 || l.Generated > len(l.Lengths) {
					t.Errorf("%+v", l)
				}
			}
			if generated != tokens || rows != m.Prefilled+m.Decoded || m.Prefilled+m.Reused != prompts ||
				m.Steps != len(m.StepLoads) || most != 9 || shared == 0 {
				t.Errorf("generated %d of %d, %d rows, %d sequences, %d shared: %+v", generated, tokens, rows, most,
					shared,
					m.Counters)
			}
			if len(m.TimeToFirstToken) != len(reqs) || len(m.InterTokenLatency) != tokens-len(reqs) ||
				!slices.IsSorted(m.TimeToFirstToken) ||
				m.TimeToFirstToken[0] <= 0 || seconds > m.Seconds || seconds < m.Seconds/2 {
				t.Errorf("%d first tokens from %v, %d others, %v s in steps of %v", len(m.TimeToFirstToken),
					m.TimeToFirstToken[:1],
					len(m.InterTokenLatency), seconds, m.Seconds)
			}
		}
		reqs[3].Prompt = nil
		if _, err := e.Measure(context.Background(), reqs); err == nil || e.InFlight() != 0 {
			t.Errorf("a bad request was accepted, or others wait: %v", err)
		}
	})
}

// BenchmarkCPUOverhead measures the CPU work of a decoding step of 256 sequences: schedule, layout and sampling
// settings.
func BenchmarkCPUOverhead(b *testing.B) {
	const n, prompt, rows = 256, 512, 64
	e := &Engine{options: Options{Slots: n, PageRows: rows, Pages: n * 64, PrefillRows: n * prompt},
		pages: newPagePool(n*64, rows), prefixCaching: true}
	for i := range n {
		e.freeSlots = append(e.freeSlots, n-1-i)
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
		if step++; step%1024 == 0 { // all sequences end, others begin
			for len(e.running) > 0 {
				e.preempt(e.running[len(e.running)-1])
			}
			e.waiting = nil
			fill()
		}
		batch := e.schedule()
		e.layout(batch)
		samplings(e.running)
		for _, w := range batch {
			w.seq.cached += w.rows
			w.seq.tokens = append(w.seq.tokens, int32(step))
		}
	}
}
