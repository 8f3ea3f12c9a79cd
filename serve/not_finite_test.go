package serve

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// poisoned is a golden model whose embedding of one token is no number.
func poisoned(t *testing.T, def kernels.Definition, dtype kernels.DType, body func(r *parallel.Rank, s *ServedModel)) {
	t.Helper()
	served(t, "glm4_moe", def, dtype, func(r *parallel.Rank, s *ServedModel) {
		w := s.Model.Embed.Param.W
		row := w.RowRange(poison, poison+1)
		raw := make([]byte, row.Bytes())
		for i := range raw {
			raw[i] = 0xff
		}
		r.Dev.Write(row, raw)
		body(r, s)
	})
}

const poison = 77

// A request whose logits are no numbers fails alone, greedy or sampled, with its reason: those next to it get what
// they get without it, and those after it too.
func TestNotFinite(t *testing.T) {
	for dtype, def := range map[kernels.DType]kernels.Definition{
		kernels.F32:  kernels.Default(),
		kernels.BF16: {},
	} {
		if dtype == kernels.BF16 {
			def = kernels.Default()
			def.Dot, def.Exp2 = kernels.DotTC16, kernels.Exp2Ex2h
		}
		poisoned(t, def, dtype, func(r *parallel.Rank, s *ServedModel) {
			o := Options{Slots: 6, PageRows: 8, PrefillRows: 64}
			good := []Request{{Prompt: []int32{3, 4, 5}, MaxTokens: 9, TopP: 1, Temperature: 1, Seed: 3},
				{Prompt: []int32{9, 8}, MaxTokens: 9, TopP: 0.9, TopK: 20, Temperature: 1, ID: 1, Seed: 3}}
			want, _ := generate(t, r, s, o, good)
			e, err := NewEngine(r, s.Model, kernels.NewArena(r.Dev), o)
			if err != nil {
				t.Fatal(err)
			}
			bad := Request{Prompt: []int32{3, poison, 5}, MaxTokens: 9, TopP: 1}
			sampledBad, kept, top := bad, bad, bad
			sampledBad.Temperature, kept.Temperature, kept.TopP, kept.TopK, top.TopLogProbs = 1, 1, 0.5, 7, 3
			for i, q := range []Request{bad, good[0], sampledBad, kept, good[1], top} {
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
			for _, i := range []int{0, 2, 3, 5} {
				if res := got[i]; !errors.Is(res.Err, ErrNotFinite) || res.Finish != FinishFailed || len(res.IDs) > 0 {
					t.Errorf("%v, request %d: %+v", dtype, i, res)
				}
			}
			if !reflect.DeepEqual(got[1], want[0]) || !reflect.DeepEqual(got[4], want[1]) {
				t.Errorf("%v: requests next to one that fails: %+v and %+v, want %+v", dtype, got[1], got[4], want)
			}
			if again, err := e.Run(context.Background(), good); err != nil || !reflect.DeepEqual(again, want) {
				t.Errorf("%v: requests after one that fails: %+v, error %v", dtype, again, err)
			}
			if _, err := e.Run(context.Background(), append(good[:1:1], bad)); !errors.Is(err, ErrNotFinite) ||
				!strings.HasPrefix(err.Error(), "request 1: ") {
				t.Errorf("%v: error %v", dtype, err)
			}
			if math.IsNaN(float64(want[0].LogProbs[0])) {
				t.Error("the model is poisoned for all: the test shows nothing")
			}
		})
	}
}

// Scores that are no numbers are an error, and nothing is left half-written.
func TestScoreNotFinite(t *testing.T) {
	poisoned(t, kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		dir := t.TempDir()
		in, out := filepath.Join(dir, "in.jsonl"), filepath.Join(dir, "out.safetensors")
		if err := os.WriteFile(in, []byte(`{"ids": [1, 2, 3]}`+"\n"+`{"ids": [1, 77, 3]}`+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Score(context.Background(), s.Ranks, in, out, false)
		if !errors.Is(err, ErrNotFinite) || !strings.Contains(err.Error(), "logprobs.1: ") {
			t.Errorf("error %v", err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("left %v, error %v", list, err)
		}
	})
}
