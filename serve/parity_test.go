package serve

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/parallel"
)

// recorded writes a rollout file for lockstep parity with samples of the engine, and applies change to each
// log-probability.
func recorded(t *testing.T, r *parallel.Rank, s *ServedModel, tokens int, change func(line, token int,
	p float32) float32) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	var reqs []Request
	for i := range 7 {
		prompt := make([]int32, 1+rng.IntN(9))
		for j := range prompt {
			prompt[j] = rng.Int32N(int32(s.Model.Vocab))
		}
		reqs = append(reqs, Request{ID: uint64(i), Prompt: prompt, MaxTokens: tokens, Temperature: []float32{1, 0.6, 0,
			1.3}[i%4], TopP: 1, Seed: 5})
	}
	results, _ := generate(t, r, s, Options{Slots: 3, PageRows: 16, PrefillRows: 8}, reqs)
	var text []byte
	for i, res := range results {
		lp := make([]float32, len(res.LogProbs))
		for j, p := range res.LogProbs {
			lp[j] = change(i+1, j, p)
		}
		line, err := json.Marshal(map[string]any{"prompt_ids": reqs[i].Prompt, "ids": res.IDs, "logprobs": lp,
			"temperature": reqs[i].Temperature})
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, line...), '\n')
	}
	path := filepath.Join(t.TempDir(), "rollout.jsonl")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func same(_, _ int, p float32) float32 { return p }

var bounds = Bounds{ClipLow: 0.2, ClipHigh: 0.2, Cap: 2}

// Log-probabilities of the engine are bit-identical to those of the training forward.
func TestParityOfOurs(t *testing.T) {
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		served(t, "qwen3_moe", kernels.Default(), dtype, func(r *parallel.Rank, s *ServedModel) {
			rep, err := Parity(t.Context(), s, ParityOptions{Rollout: recorded(t, r, s, 30, same), Bounds: bounds})
			if err != nil {
				t.Fatal(err)
			}
			if m := rep.Recorded; m.Tokens != 210 || m.Equal != 210 || m.K1 != 0 || m.K3 != 0 || m.Max != 0 ||
				rep.Sequences != 7 || len(rep.Worst) != 0 {
				t.Errorf("%+v", rep)
			}
			if !strings.Contains(rep.String(), "bit-identical") {
				t.Error(rep)
			}
			rep, err = Parity(t.Context(), s, ParityOptions{Rollout: recorded(t, r, s, 30, same), Temperature: 0.6,
				Bounds: bounds})
			if err != nil {
				t.Fatal(err)
			}
			if m := rep.Recorded; m.Equal < 60 || m.Equal > 70 { // two of seven lines are of this temperature
				t.Errorf("all lines taken for temperature 0.6: %+v", m)
			}
		})
	}
}

func TestParityFindsWhatDiffers(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		path := recorded(t, r, s, 30, func(line, token int, p float32) float32 {
			switch {
			case line == 3 && token == 7:
				return p - 1
			case line == 6 && token == 2:
				return p - 0.5
			case line == 2 && token == 0:
				return math.Nextafter32(p, -100)
			}
			return p
		})
		rep, err := Parity(t.Context(), s, ParityOptions{Rollout: path, Bounds: bounds})
		if err != nil {
			t.Fatal(err)
		}
		m := rep.Recorded
		if m.Equal != 207 || len(rep.Worst) != 3 || math.Abs(m.Max-1) > 1e-6 ||
			strings.Contains(rep.String(), "bit-identical") {
			t.Fatalf("%+v", rep)
		}
		for i, want := range [][2]int{{3, 7}, {6, 2}, {2, 0}} {
			if w := rep.Worst[i]; w.Line != want[0] || w.Token != want[1] {
				t.Errorf("worst token %d is %+v, want line %d token %d", i, w, want[0], want[1])
			}
		}
		if m.ClippedAbove != 2.0/210 || m.ClippedBelow != 0 || m.Capped != 1.0/210 {
			t.Errorf("clipped %v above, %v below; capped %v", m.ClippedAbove, m.ClippedBelow, m.Capped)
		}
		if _, err := rep.JSON(); err != nil {
			t.Error(err)
		}
	})
}

func TestMismatch(t *testing.T) {
	p, q := []float32{-1, -2, -0.5, -3}, []float32{-1, -2.5, -1.5, -2}
	m := NewMismatch(p, q, bounds)
	k1 := (0 - 0.5 - 1 + 1) / 4
	k3 := ((math.Exp(0.5) - 1.5) + (math.E - 2) + (math.Exp(-1) - 1 + 1)) / 4
	if m.Equal != 1 || math.Abs(m.K1-k1) > 1e-15 || math.Abs(m.K3-k3) > 1e-7 || m.Mean != 0.625 ||
		m.Percentiles != [4]float64{0.5, 1, 1, 1} || m.Max != 1 {
		t.Errorf("%+v, want k1 %v, k3 %v", m, k1, k3)
	}
	if m.ClippedAbove != 0.5 || m.ClippedBelow != 0.25 || m.Capped != 0.25 {
		t.Errorf("%+v", m)
	}
}

// against runs Parity with an alternative definition.
func against(t *testing.T, r *parallel.Rank, s *ServedModel, changes, path string) *ParityReport {
	t.Helper()
	other := Alternative{Definition: r.Dev.Definition()}
	if changes != "" {
		var err error
		if other, err = ParseAlternative(r.Dev.Definition(), changes); err != nil {
			t.Fatal(err)
		}
	}
	dev, err := cpu.New(other.Definition, cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	rep, err := Parity(t.Context(), s, ParityOptions{Rollout: path, Bounds: bounds, Against: dev,
		Alternative: other})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// The search finds each change of the definition in the operation that it affects, and no earlier difference.
func TestDivergenceSearch(t *testing.T) {
	for _, c := range []struct {
		changes string
		tokens  int
		want    string
	}{
		{"combine=bf16", 30, "block 0 / moe / combine"}, {"router=bf16", 30, "block 0 / moe / route"},
		{"norm=bf16", 30, "block 0 / attention / norm"},
		{"weights=fp8", 30, "block 0 / attention / matmul q_proj"},
		{"key_split=64", 100, "block 0 / attention / attention"}, {"key_split=128", 30, ""},
		{"exp2=ex2h", 30, "block 0 / attention / attention"}, {"combine=bf16,router=bf16", 30, "block 0 / moe / route"},
		{"combine=bf16,router=bf16,weights=fp8", 30, "block 0 / attention / matmul q_proj"},
	} {
		served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
			rep := against(t, r, s, c.changes, recorded(t, r, s, c.tokens, same))
			first := ""
			if p := rep.Search.First; p != nil {
				first = p.Module + " / " + p.Op
			}
			if first != c.want {
				t.Errorf("%s: first at %q, want %q\n%s", c.changes, first, c.want, rep)
			}
			if identical := rep.AgainstMismatch.Equal == rep.AgainstMismatch.Tokens; identical != (c.want == "") {
				t.Errorf("%s: %+v", c.changes, rep.AgainstMismatch)
			}
			growth := rep.Search.Growth
			if len(growth) != 2+2*len(s.Model.Blocks) || growth[0].Module != "embedding" || growth[0].Differ != 0 ||
				growth[len(growth)-1].Op != "logprob" {
				t.Errorf("%s: growth %+v", c.changes, growth)
			}
			if last := growth[len(growth)-2]; (last.Differ > 0) != (c.want != "") || last.Op != "combine" {
				t.Errorf("%s: the last residual step is %+v", c.changes, last)
			}
		})
	}
}

// Two forwards by one definition are equal in every operation, and every operation of every family is recorded.
func TestNoDivergence(t *testing.T) {
	for _, family := range families {
		served(t, family, kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
			rep := against(t, r, s, "", recorded(t, r, s, 20, same))
			v := rep.Search
			if v.First != nil || rep.AgainstMismatch.Equal != 140 || rep.Recorded.Equal != 140 {
				t.Errorf("%s: %s", family, rep)
			}
			seen := map[string]bool{}
			for _, p := range v.ops {
				if strings.HasSuffix(p.Op, "matmul ") || p.Elements == 0 {
					t.Errorf("%s: %+v has no name or no elements", family, p)
				}
				seen[strings.Fields(p.Op)[0]] = true
			}
			if !seen["matmul"] || !seen["norm"] || !seen["add"] || !seen["embed"] || !seen["logprob"] {
				t.Errorf("%s: saw %v", family, seen)
			}
		})
	}
}

// Batches hold whole sequences in order, of at most parityRows rows, or one longer sequence.
func TestReadRecordings(t *testing.T) {
	served(t, "qwen3", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		path := filepath.Join(t.TempDir(), "many.jsonl")
		line := fmt.Sprintf("{\"prompt_ids\":[1],\"ids\":%s,\"logprobs\":%s}\n", jsonOf(slices.Repeat([]int{3}, 200)),
			jsonOf(slices.Repeat([]int{-1}, 200)))
		if err := os.WriteFile(path, []byte(strings.Repeat(line, 50)), 0o644); err != nil {
			t.Fatal(err)
		}
		batches, err := readRecordings(path, s.Model, 0)
		if err != nil {
			t.Fatal(err)
		}
		next := 1
		for i, b := range batches {
			if len(b) != 20 && i < len(batches)-1 {
				t.Errorf("batch %d has %d sequences of 201 rows", i, len(b))
			}
			for _, rec := range b {
				if rec.line != next {
					t.Fatalf("line %d, want %d", rec.line, next)
				}
				next++
			}
		}
		if next != 51 {
			t.Errorf("%d lines", next-1)
		}
	})
}

func jsonOf(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestParseOther(t *testing.T) {
	o, err := ParseAlternative(kernels.Default(), "combine=bf16,router=bf16,weights=fp8,key_split=256")
	if err != nil || o.Definition.Combine != kernels.ToBF16 || o.Definition.Router != kernels.ToBF16 ||
		o.Definition.KeySplit != 256 || o.Weights.As != "fp8" || !o.Weights.Projections {
		t.Errorf("%+v (%v)", o, err)
	}
	for _, text := range []string{"", "combine", "combine=fp8", "weights=int3", "wieghts=fp8", "coded=all",
		"coded=experts", "coded=projections", "key_split=1,combine=bf16"} {
		if _, err := ParseAlternative(kernels.Default(), text); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
