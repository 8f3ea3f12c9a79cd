package serve

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// groups makes requests for size samples of each of n prompts. Prompts share prefixes.
func groups(rng *rand.Rand, m *model.Model, n, size int) (reqs []Request) {
	var prompt []int32
	for range n {
		prompt = slices.Clone(prompt[:rng.IntN(len(prompt)+1)])
		for range 1 + rng.IntN(40) {
			prompt = append(prompt, rng.Int32N(int32(m.Vocab)))
		}
		prompt = prompt[:min(len(prompt), 60)]
		for range size {
			reqs = append(reqs, Request{ID: uint64(len(reqs)), Prompt: prompt, MaxTokens: 1 + rng.IntN(24),
				Temperature: 1, TopP: 1, Seed: 5})
		}
	}
	return reqs
}

func equal(a, b Result) bool {
	return slices.Equal(a.IDs, b.IDs) && slices.Equal(a.LogProbs, b.LogProbs) && a.Finish == b.Finish
}

// checkPages compares the page pool with what running sequences hold.
func checkPages(t *testing.T, e *Engine) {
	t.Helper()
	holders, shared := make([]int32, e.options.Pages), 0
	for _, s := range e.running {
		for i, page := range s.pages {
			if holders[page]++; holders[page] > 1 {
				shared++
				if (i+1)*e.options.PageRows > s.cached {
					t.Fatalf("sequence %d shares page %d of %d before it is full", s.index, i, len(s.pages))
				}
			}
		}
	}
	p := e.pages
	if !slices.Equal(holders, p.holders) || shared != p.shared {
		t.Fatalf("holders of pages %v and %d shared, in the pool %v and %d", holders, shared, p.holders, p.shared)
	}
	ring := 0
	for page := p.next[e.options.Pages]; page != int32(e.options.Pages); page = p.next[page] {
		if ring++; p.holders[page] != 0 || p.prev[p.next[page]] != page {
			t.Fatalf("page %d is in the free ring and has %d holders", page, p.holders[page])
		}
	}
	if ring != p.free || p.free != e.options.Pages-len(holders)+count(holders, 0) {
		t.Fatalf("%d pages are free, in the pool %d of %d", ring, p.free, e.options.Pages)
	}
	if len(e.freeSlots)+len(e.running) != e.options.Slots {
		t.Fatalf("%d slots are free while %d sequences run in %d", len(e.freeSlots), len(e.running), e.options.Slots)
	}
}

func count(list []int32, v int32) (n int) {
	for _, x := range list {
		if x == v {
			n++
		}
	}
	return n
}

// The prefix cache changes no bit of a result and saves the rows that it holds. Recurrent models do not use it.
func TestSharing(t *testing.T) {
	for _, family := range []string{"qwen3_moe", "gpt_oss", "glm5", "deepseek_v3_grouped", "qwen3_5_moe",
		"nemotron_h"} {
		served(t, family, kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
			rng := rand.New(rand.NewPCG(1, 2))
			recurrent := family == "qwen3_5_moe" || family == "nemotron_h"
			for round := range 3 {
				reqs := groups(rng, s.Model, 4, 1+rng.IntN(6))
				o := Options{Slots: 1 + rng.IntN(24), PageRows: 1 + rng.IntN(9), PrefillRows: 1 + rng.IntN(100)}
				if round%2 == 1 {
					o.Pages = 84/o.PageRows + 1 + rng.IntN(10)
				}
				shared, e := generate(t, r, s, o, reqs)
				o.NoPrefixCache = true
				apart, f := generate(t, r, s, o, reqs)
				for i := range reqs {
					if !equal(shared[i], apart[i]) {
						t.Errorf("%s %+v: sample %d is %v, apart %v", family, o, i, shared[i], apart[i])
					}
				}
				if f.Reused != 0 || (e.Reused == 0) != recurrent {
					t.Errorf("%s %+v: %d rows reused, apart %d", family, o, e.Reused, f.Reused)
				}
				if all := e.Prefilled + e.Reused; round%2 == 0 && all != f.Prefilled || e.Preempted+f.Preempted == 0 &&
					e.Decoded != f.Decoded {
					t.Errorf("%s %+v: computed %d rows of prompts and reused %d, apart %d; decoded %d and %d", family,
						o, e.Prefilled, e.Reused, f.Prefilled, e.Decoded, f.Decoded)
				}
				checkPages(t, e)
			}
		})
	}
}

// All samples of a prompt share its full pages, even in the step that writes them.
func TestGroupPrefillsOnce(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		var reqs []Request
		for i := range 8 {
			reqs = append(reqs, Request{ID: uint64(i), Prompt: goldenIDs(t, "qwen3_moe", "ids.0")[:21], MaxTokens: 3,
				Temperature: 1, TopP: 1})
		}
		for _, rows := range []int{6, 512} { // of a step
			_, e := generate(t, r, s, Options{Slots: 8, PageRows: 4, PrefillRows: rows}, reqs)
			if e.Reused != 7*20 || e.Prefilled != 21+7 || e.Decoded != 8*2 {
				t.Errorf("%d rows a step: %+v", rows, e.Counters)
			}
		}
	})
}

// If weights change while sequences are in flight, nothing of the old cache is used after Refresh. Without Refresh it
// is used, which the test shows too.
func TestRefreshClearsCache(t *testing.T) {
	for _, refresh := range []bool{true, false} {
		served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
			o := Options{Slots: 8, PageRows: 4, PrefillRows: 64}
			e := startEngine(t, r, s, o, groups(rand.New(rand.NewPCG(3, 4)), s.Model, 3, 4))
			for range 4 {
				if _, err := e.Step(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			r.Dev.Scale(s.Model.Embed.W, s.Model.Embed.W, 1.5)
			if refresh {
				e.Refresh(1)
			}
			for len(e.running) > 0 {
				e.preempt(e.running[len(e.running)-1])
			}
			fresh := startEngine(t, r, s, o, nil)
			fresh.Refresh(e.version)
			fresh.Resume(e.Pending())
			want, got := finishAll(t, fresh), finishAll(t, e)
			same := true
			for i, w := range want {
				same = same && equal(got[i], w)
			}
			if same != refresh {
				t.Errorf("refresh %t: the same as a new engine: %t", refresh, same)
			}
		})
	}
}

// An idle engine clears its cache: weights that change between two runs need no Refresh.
func TestIdleClearsCache(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		o, reqs := Options{Slots: 8, PageRows: 4, PrefillRows: 64}, groups(rand.New(rand.NewPCG(3, 4)), s.Model, 3, 4)
		_, e := generate(t, r, s, o, reqs)
		r.Dev.Scale(s.Model.Embed.W, s.Model.Embed.W, 1.5)
		got, err := e.Run(context.Background(), reqs)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := generate(t, r, s, o, reqs)
		for i := range want {
			if !equal(got[i], want[i]) {
				t.Errorf("sample %d is %v, in a new engine %v", i, got[i], want[i])
			}
		}
	})
}

// Random traffic in a cache that is too small, with late requests, cancellation and preemption. Each request ends once,
// with the result that it has alone, or with a prefix of it if it was cancelled.
func TestCancel(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		rng := rand.New(rand.NewPCG(7, 8))
		reqs := groups(rng, s.Model, 10, 4)
		want, _ := generate(t, r, s, Options{Slots: 1, PageRows: 64, PrefillRows: 64, NoPrefixCache: true}, reqs)
		for round := range 6 {
			e := startEngine(t, r, s, Options{Slots: 1 + rng.IntN(12), PageRows: 3, PrefillRows: 1 + rng.IntN(40),
				Pages: 28 + rng.IntN(20)}, nil)
			ended := make([]int, len(reqs))
			cancelled, waited := [2]int{}, 0
			for next := 0; next < len(reqs) || e.InFlight() > 0; {
				for ; next < len(reqs) && rng.IntN(3) > 0; next++ {
					if err := e.Submit(next, reqs[next]); err != nil {
						t.Fatal(err)
					}
				}
				if i := rng.IntN(len(reqs)); rng.IntN(4) == 0 && i < next {
					running := slices.ContainsFunc(e.running, func(s *sequence) bool { return s.index == i })
					res, ok := e.Cancel(i)
					if ok != (ended[i] == 0) {
						t.Fatalf("request %d, ended %d times, was cancelled: %t", i, ended[i], ok)
					}
					if ok {
						ended[i]++
						cancelled[map[bool]int{false: 0, true: 1}[running]]++
						if res.Finish != FinishCancelled || len(res.IDs) >= len(want[i].IDs) ||
							!slices.Equal(res.IDs, want[i].IDs[:len(res.IDs)]) {
							t.Errorf("round %d: sample %d was cancelled as %v, alone %v", round, i, res, want[i])
						}
					}
				}
				if rng.IntN(16) == 0 {
					e.Refresh(round)
				}
				checkPages(t, e)
				if e.InFlight() == 0 {
					continue
				}
				done, err := e.Step(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				checkPages(t, e)
				if len(e.waiting) > 0 && len(e.freeSlots) > 0 {
					waited++
				}
				for _, d := range done {
					if ended[d.Index]++; !equal(d.Result, want[d.Index]) {
						t.Errorf("round %d: sample %d is %v, alone %v", round, d.Index, d.Result, want[d.Index])
					}
				}
			}
			if slices.ContainsFunc(ended, func(n int) bool { return n != 1 }) {
				t.Errorf("round %d: requests ended %v times", round, ended)
			}
			if e.Cancelled != cancelled[0]+cancelled[1] || e.pages.free != e.options.Pages || len(e.pages.registered) !=
				0 {
				t.Errorf("round %d: %+v with %d free pages of %d, %d known", round, e.Counters, e.pages.free,
					e.options.Pages,
					len(e.pages.registered))
			}
			t.Logf("round %d: %+v; cancelled waiting %d, running %d; %d steps with a free slot and waiting requests",
				round, e.Counters, cancelled[0], cancelled[1], waited)
		}
	})
}

// An engine works after a run whose context was cancelled.
func TestRunCancelled(t *testing.T) {
	served(t, "qwen3", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		reqs := groups(rand.New(rand.NewPCG(3, 4)), s.Model, 3, 4)
		e := startEngine(t, r, s, Options{Slots: 4, PageRows: 4, PrefillRows: 16}, nil)
		ctx, cancel := context.WithCancel(context.Background())
		rows := 0
		e.onLogits = func(*sequence, int, []float32) {
			if rows++; rows == 60 {
				cancel()
			}
		}
		if _, err := e.Run(ctx, reqs); err == nil {
			t.Fatal("a cancelled run has results")
		}
		checkPages(t, e)
		e.onLogits = nil
		got, err := e.Run(context.Background(), reqs)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := generate(t, r, s, Options{Slots: 4, PageRows: 4, PrefillRows: 16}, reqs)
		for i := range want {
			if !equal(got[i], want[i]) {
				t.Errorf("sample %d is %v after a cancelled run, %v without", i, got[i], want[i])
			}
		}
	})
}

// startEngine makes an engine with these requests waiting.
func startEngine(t *testing.T, r *parallel.Rank, s *ServedModel, o Options, reqs []Request) *Engine {
	t.Helper()
	e, err := NewEngine(r, s.Model, kernels.NewArena(r.Dev), o)
	if err != nil {
		t.Fatal(err)
	}
	for i, q := range reqs {
		if err := e.Submit(i, q); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// finishAll runs all requests in flight.
func finishAll(t *testing.T, e *Engine) map[int]Result {
	t.Helper()
	all := map[int]Result{}
	for e.InFlight() > 0 {
		done, err := e.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range done {
			all[d.Index] = d.Result
		}
	}
	return all
}
