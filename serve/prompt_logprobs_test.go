package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Log-probabilities of a prompt are those of Score, on every bit, whatever the engine's sizes, with prefix caching,
// preemption and others in the batch. Asking for them changes nothing else.
func TestPromptLogProbs(t *testing.T) {
	for _, family := range []string{"qwen3_moe", "qwen3_5_moe", "glm5"} {
		served(t, family, kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
			common := goldenIDs(t, family, "ids.0")
			common = slices.Concat(common, common)[:40]
			var plain, reqs []Request
			for i := range 12 {
				q := Request{ID: uint64(i), Prompt: slices.Clone(common[:1+(i*7)%39]), MaxTokens: 1 + 3*i, TopP: 1,
					Temperature: []float32{0, 0.7}[i%2], Seed: 3}
				plain = append(plain, q)
				q.PromptLogProbs, q.PromptTop = i%3 > 0, i%4
				if i == 4 {
					q.MaxTokens = 0
				}
				reqs = append(reqs, q)
			}
			want, _ := generate(t, r, s, Options{Slots: 1, PageRows: 16, PrefillRows: 512}, plain)
			preempted := 0
			for _, o := range []Options{{Slots: 1, PageRows: 4, PrefillRows: 512}, {Slots: 12, PageRows: 1,
				PrefillRows: 5}, {Slots: 12, PageRows: 7, PrefillRows: 64, Pages: 12}} {
				res, e := generate(t, r, s, o, reqs)
				preempted += e.Preempted
				for i, q := range reqs {
					checkPrompt(t, fmt.Sprintf("%s, %+v, request %d", family, o, i), s, r, q, res[i])
					if q.MaxTokens > 0 && (!slices.Equal(res[i].IDs, want[i].IDs) ||
						!slices.Equal(res[i].LogProbs, want[i].LogProbs)) {
						t.Errorf("%s: request %d draws %v, without its prompt's %v", family, i, res[i].IDs, want[i].IDs)
					}
				}
				if slot := family != "qwen3_5_moe"; slot && e.Reused == 0 && o.Slots > 1 {
					t.Errorf("%s, %+v: no page was shared, so the test does not cover it", family, o)
				}
			}
			if preempted == 0 {
				t.Error("no sequence was preempted, so the test does not cover it")
			}
		})
	}
}

func checkPrompt(t *testing.T, name string, s *ServedModel, r *parallel.Rank, q Request, res Result) {
	t.Helper()
	if !q.PromptLogProbs {
		if res.Prompt != nil {
			t.Errorf("%s: %v was not asked for", name, res.Prompt)
		}
		return
	}
	if q.MaxTokens == 0 && (len(res.IDs) != 0 || res.Finish != FinishLength) {
		t.Errorf("%s: generated %v, %s", name, res.IDs, res.Finish)
	}
	want := logProbs(r, s.Model, q.Prompt)
	if len(res.Prompt) != len(want) {
		t.Fatalf("%s: %d log-probabilities of %d tokens", name, len(res.Prompt), len(q.Prompt))
	}
	logits := allLogits(r, s.Model, q.Prompt)
	for i, p := range res.Prompt {
		row := logits[i*s.Model.Vocab : (i+1)*s.Model.Vocab]
		order := largest(row, len(row))
		rank := 1 + slices.IndexFunc(order, func(id int32) bool { return row[id] == row[p.ID] })
		if p.ID != q.Prompt[i+1] || p.LogProb != want[i] || p.Rank != rank || len(p.Top) != q.PromptTop {
			t.Fatalf("%s: token %d is %+v, want id %d with %v, rank %d", name, i+1, p, q.Prompt[i+1], want[i], rank)
		}
		for k, top := range p.Top {
			if top.ID != order[k] || top.ID == p.ID && top.LogProb != p.LogProb {
				t.Fatalf("%s: token %d lists %+v, the order is %v", name, i+1, p, order[:len(p.Top)])
			}
		}
	}
}

// A preempted sequence does not compute again the rows of its prompt whose log-probabilities it has, and Refresh makes
// it compute all with the new weights.
func TestPromptLogProbsRefresh(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		e, err := NewEngine(r, s.Model, kernels.NewArena(r.Dev), Options{Slots: 1, PageRows: 4, PrefillRows: 8})
		if err != nil {
			t.Fatal(err)
		}
		q := Request{Prompt: goldenIDs(t, "qwen3_moe", "ids.0")[:20], TopP: 1, PromptLogProbs: true}
		if err := e.Submit(0, q); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		w := s.Model.Embed.Param.W
		r.Dev.Write(w, make([]byte, w.Bytes())) // other weights
		e.Refresh(1)
		var done []Done
		for len(done) == 0 {
			if done, err = e.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		checkPrompt(t, "after other weights", s, r, q, done[0].Result)
	})
}

// A prompt whose logits are no numbers fails alone, and says at which token.
func TestPromptLogProbsNotFinite(t *testing.T) {
	poisoned(t, kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		e, err := NewEngine(r, s.Model, kernels.NewArena(r.Dev), Options{Slots: 3, PageRows: 8, PrefillRows: 4})
		if err != nil {
			t.Fatal(err)
		}
		good := Request{Prompt: []int32{3, 4, 5, 6, 7, 8, 9}, TopP: 1, PromptLogProbs: true, MaxTokens: 3}
		bad := Request{Prompt: []int32{3, 4, poison, 6, 7, 8, 9, 10, 11}, TopP: 1, PromptLogProbs: true}
		for i, q := range []Request{bad, good} {
			if err := e.Submit(i, q); err != nil {
				t.Fatal(err)
			}
		}
		got := map[int]Result{}
		for e.InFlight() > 0 {
			done, err := e.Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range done {
				got[d.Index] = d.Result
			}
		}
		if res := got[0]; !errors.Is(res.Err, ErrNotFinite) || !strings.Contains(res.Err.Error(),
			"of the prompt") || res.Finish != FinishFailed || len(res.IDs) > 0 {
			t.Errorf("%+v", res)
		}
		checkPrompt(t, "next to one that fails", s, r, good, got[1])
		if e.pages.free != e.options.Pages || math.IsNaN(float64(got[1].LogProbs[0])) {
			t.Errorf("%d of %d pages are free, %+v", e.pages.free, e.options.Pages, got[1])
		}
		if again, err := e.Run(context.Background(), []Request{good}); err != nil ||
			!reflect.DeepEqual(again[0], got[1]) {
			t.Errorf("%+v, %v, want %+v", again, err, got[1])
		}
	})
}
