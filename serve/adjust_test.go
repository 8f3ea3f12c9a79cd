package serve

import (
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// drawn is the id that an adjusted row gives, by the words of OpenAI's and vLLM's documentation.
func drawn(r *parallel.Rank, row []float32, q Request, before []int32) int32 {
	row = slices.Clone(row)
	a := q.Adjust
	for id := range row {
		times := 0
		for _, x := range before {
			if int(x) == id {
				times++
			}
		}
		row[id] += a.Bias[int32(id)]
		if a.Repetition != 0 && (times > 0 || slices.Contains(q.Prompt, int32(id))) {
			if row[id] > 0 {
				row[id] /= a.Repetition
			} else {
				row[id] *= a.Repetition
			}
		}
		if times > 0 {
			row[id] -= float32(a.Frequency*float32(times)) + a.Presence
		}
	}
	if a.MinP > 0 && q.Temperature > 0 {
		best := slices.Max(row)
		for id, x := range row {
			if math.Exp(float64(x-best)/float64(q.Temperature)) < float64(a.MinP) {
				row[id] = float32(math.Inf(-1))
			}
		}
	}
	ids := r.Stack.New(kernels.I32, 1, 1)
	r.Dev.Sample(ids, parallel.Upload(r, row), []kernels.Sampling{{Temperature: q.Temperature, TopK: q.TopK,
		TopP: q.TopP, Seed: q.Seed, Request: q.ID, Index: uint64(len(before))}})
	return parallel.Download[int32](r, ids)[0]
}

// Adjustments draw what their definitions say from the model's logits, next to other requests and alone, with
// preemption, and log-probabilities stay those of the model.
func TestAdjust(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		defer r.Stack.Release(r.Stack.Mark())
		prompt := goldenIDs(t, "qwen3_moe", "ids.0")[:12]
		var reqs, plain []Request
		for i, a := range []Adjust{{}, {Bias: map[int32]float32{7: 100}},
			{Bias: map[int32]float32{9: 5, prompt[2]: -3}},
			{Frequency: 0.7}, {Presence: 1.5}, {Repetition: 1.4}, {Repetition: 0.6}, {MinP: 0.4}, {Frequency: -0.5,
				Presence: 0.25, Repetition: 1.1, MinP: 0.1, Bias: map[int32]float32{prompt[0]: 2, 11: -1}}} {
			for k, temperature := range []float32{0, 0.8} {
				q := Request{ID: uint64(i), Prompt: prompt[:4+i], MaxTokens: 18, Temperature: temperature, TopP: 1 -
					0.2*float32(k), Seed: 5, TopLogProbs: 2}
				plain = append(plain, q)
				q.Adjust = a
				reqs = append(reqs, q)
			}
		}
		unchanged, _ := generate(t, r, s, Options{Slots: 20, PageRows: 16, PrefillRows: 64}, plain)
		var first []Result
		preempted := 0
		for _, o := range []Options{{Slots: 20, PageRows: 16, PrefillRows: 64}, {Slots: 1, PageRows: 4,
			PrefillRows: 9}, {Slots: 12, PageRows: 4, PrefillRows: 64, Pages: 22}} {
			res, e := generate(t, r, s, o, reqs)
			preempted += e.Preempted
			if first == nil {
				first = res
			}
			for i, q := range reqs {
				if !slices.Equal(res[i].IDs, first[i].IDs) || !slices.Equal(res[i].LogProbs, first[i].LogProbs) {
					t.Fatalf("%+v: request %d: %v, elsewhere %v", o, i, res[i].IDs, first[i].IDs)
				}
				if !q.Adjust.active() && !slices.Equal(res[i].IDs, unchanged[i].IDs) {
					t.Errorf("%+v: request %d does not adjust, and draws %v, want %v", o, i, res[i].IDs,
						unchanged[i].IDs)
				}
			}
		}
		if preempted == 0 {
			t.Error("no sequence was preempted, so the test does not cover it")
		}
		changed := 0
		for i, q := range reqs {
			res := first[i]
			if q.Adjust.active() && !slices.Equal(res.IDs, unchanged[i].IDs) {
				changed++
			}
			all := slices.Concat(q.Prompt, res.IDs)
			logits := allLogits(r, s.Model, all)
			told := logProbs(r, s.Model, all)[len(q.Prompt)-1:]
			for k, id := range res.IDs {
				row := logits[(len(q.Prompt)-1+k)*s.Model.Vocab:][:s.Model.Vocab]
				if want := drawn(r, row, q, res.IDs[:k]); id != want {
					t.Fatalf("%+v: token %d is %d, want %d", q, k, id, want)
				}
				if q.Temperature == 0 && res.LogProbs[k] != told[k] {
					t.Fatalf("%+v: token %d is told with %v, want %v", q, k, res.LogProbs[k], told[k])
				}
				if top := res.TopLogProbs[k]; top[0].ID != largest(row, 1)[0] {
					t.Fatalf("%+v: token %d lists %v", q, k, top)
				}
			}
		}
		if changed < 12 {
			t.Errorf("only %d requests draw something else by their adjustments", changed)
		}
	})
}

func TestAdjustRefuses(t *testing.T) {
	for want, a := range map[string]Adjust{
		"frequency penalty 3":   {Frequency: 3},
		"presence penalty -2.5": {Presence: -2.5},
		"repetition penalty":    {Repetition: -1},
		"min-p":                 {MinP: float32(math.NaN())},
		"bias 101 of token 3":   {Bias: map[int32]float32{3: 101}},
		"of token 320":          {Bias: map[int32]float32{320: 1}},
	} {
		q := Request{Prompt: []int32{1}, MaxTokens: 1, TopP: 1, Adjust: a}
		if err := q.validate(320, 16); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", a, err, want)
		}
	}
}
