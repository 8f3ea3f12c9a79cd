package serve

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
)

const goldens = "../model/testdata/"

// served runs body with a golden model on a device that computes by def.
func served(t *testing.T, family string, def kernels.Definition, dtype kernels.DType, body func(r *parallel.Rank,
	s *ServedModel)) {
	t.Helper()
	dev, err := cpu.New(def, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		s, err := Open(nil, r, goldens+family, "", model.Options{DType: dtype})
		if err == nil {
			body(r, s)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func goldenIDs(t *testing.T, family, name string) []int32 {
	t.Helper()
	f, err := safetensors.Open(goldens + family + "/golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, ok := f.Checkpoint().Tensor(name)
	if !ok {
		t.Fatalf("no %s", name)
	}
	var ids []int32
	for i := 0; i < len(info.Data); i += 8 {
		ids = append(ids, int32(info.Data[i])|int32(info.Data[i+1])<<8)
	}
	return ids
}

func generate(t *testing.T, r *parallel.Rank, s *ServedModel, o Options, reqs []Request) ([]Result, *Engine) {
	t.Helper()
	e, err := NewEngine(r, s.Model, kernels.NewArena(r.Dev), o)
	if err != nil {
		t.Fatal(err)
	}
	res, err := e.Run(context.Background(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	return res, e
}

// families are the golden checkpoints.
var families = []string{"qwen3", "qwen3_moe", "qwen3_5_moe", "deepseek_v3_grouped", "glm4_moe", "glm4_moe_lite", "glm5",
	"glm5_shared", "gpt_oss", "kimi_k2", "kimi_k25_wrapped", "llama3", "minimax_m2", "nemotron_h"}

func TestGreedyGolden(t *testing.T) {
	for _, family := range append(families, "qwen3_5_moe_wrapped") {
		served(t, family, kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
			res, _ := generate(t, r, s, Options{Slots: 2, PageRows: 16, PrefillRows: 3}, []Request{
				{Prompt: goldenIDs(t, family, "ids.1")[:8], MaxTokens: 16, TopP: 1},
			})
			if want := goldenIDs(t, family, "greedy"); !slices.Equal(res[0].IDs, want) {
				t.Errorf("%s: %v, want %v", family, res[0].IDs, want)
			}
		})
	}
}

// The sizes of the engine change no token and no log-probability. Samples of one prompt differ.
func TestSizesChangeNothing(t *testing.T) {
	def := kernels.Default()
	plain := sizesChangeNothing(t, def)
	def.Cache = quant.MXFP8
	if rounded := sizesChangeNothing(t, def); slices.EqualFunc(plain, rounded, equal) {
		t.Error("rounded keys and values make no difference")
	}
}

func sizesChangeNothing(t *testing.T, def kernels.Definition) (first []Result) {
	served(t, "qwen3_moe", def, kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		var reqs []Request
		for i := range 24 {
			reqs = append(reqs, Request{
				ID: uint64(i), Prompt: goldenIDs(t, "qwen3_moe", "ids.0")[:1+i%7*4], MaxTokens: 5 + i,
				Temperature: []float32{1, 0.6, 1.3}[i%3], TopP: 0.95, TopK: 50 * (i % 2), Seed: 7,
			})
		}
		reqs[23].Prompt = reqs[2].Prompt
		preempted := 0
		for _, o := range []Options{
			{Slots: 1, PageRows: 64, PrefillRows: 512}, {Slots: 64, PageRows: 1, PrefillRows: 5},
			{Slots: 24, PageRows: 7, PrefillRows: 64, Pages: 14},
		} {
			res, e := generate(t, r, s, o, reqs)
			preempted += e.Preempted
			if first == nil {
				first = res
			}
			for i := range res {
				if !slices.Equal(res[i].IDs, first[i].IDs) || !slices.Equal(res[i].LogProbs, first[i].LogProbs) ||
					res[i].Finish != first[i].Finish {
					t.Errorf("%+v: sample %d is %v, first %v", o, i, res[i], first[i])
				}
			}
			if e.pages.free != e.options.Pages {
				t.Errorf("%+v: %d of %d pages are free at the end", o, e.pages.free, e.options.Pages)
			}
		}
		if preempted == 0 {
			t.Error("no sequence was preempted, so the test does not cover it")
		}
		if slices.Equal(first[2].IDs, first[23].IDs[:len(first[2].IDs)]) {
			t.Error("two samples of one prompt are the same")
		}
	})
	return first
}

// A sequence keeps its slot from its first position on, and no other running sequence has it.
func TestSlots(t *testing.T) {
	served(t, "qwen3", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		e, err := NewEngine(r, s.Model, kernels.NewArena(r.Dev), Options{Slots: 3, PageRows: 4, PrefillRows: 6,
			Pages: 12, NoPrefixCache: true})
		if err != nil {
			t.Fatal(err)
		}
		slot, used := map[int]int{}, map[int]bool{}
		e.onLogits = func(s *sequence, position int, _ []float32) {
			if position == 0 {
				slot[s.index] = s.slot
			}
			used[s.slot] = true
			if s.slot != slot[s.index] || s.slot < 0 || s.slot >= 3 {
				t.Errorf("sequence %d is in slot %d at position %d, was in %d", s.index, s.slot, position,
					slot[s.index])
			}
			for _, o := range e.running {
				if o != s && o.slot == s.slot {
					t.Errorf("sequences %d and %d are both in slot %d", s.index, o.index, s.slot)
				}
			}
		}
		var reqs []Request
		for i := range 12 {
			reqs = append(reqs, Request{ID: uint64(i), Prompt: goldenIDs(t, "qwen3", "ids.0")[:1+i], MaxTokens: 1 +
				7*i%20, TopP: 1})
		}
		if _, err := e.Run(context.Background(), reqs); err != nil {
			t.Fatal(err)
		}
		if len(used) != 3 || len(e.freeSlots) != 3 || e.Preempted == 0 {
			t.Errorf("used slots %v, %d free at the end, %d preempted", used, len(e.freeSlots), e.Preempted)
		}
	})
}

func TestStop(t *testing.T) {
	served(t, "qwen3", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		greedy := goldenIDs(t, "qwen3", "greedy")
		res, _ := generate(t, r, s, Options{Slots: 1, PageRows: 16, PrefillRows: 8}, []Request{
			{Prompt: goldenIDs(t, "qwen3", "ids.1")[:8], MaxTokens: 16, TopP: 1, Stop: greedy[3:4]},
		})
		n := 1 + slices.Index(greedy, greedy[3])
		if res[0].Finish != FinishStop || !slices.Equal(res[0].IDs, greedy[:n]) {
			t.Errorf("%+v, want the first %d of %v", res[0], n, greedy)
		}
	})
}

func TestBadRequests(t *testing.T) {
	served(t, "qwen3", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		e, err := NewEngine(r, s.Model, kernels.NewArena(r.Dev), Options{Slots: 1, PageRows: 16, PrefillRows: 8,
			Pages: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []Request{
			{MaxTokens: 1, TopP: 1}, {Prompt: []int32{1}, TopP: 1}, {Prompt: []int32{320}, MaxTokens: 1, TopP: 1},
			{Prompt: []int32{-1}, MaxTokens: 1, TopP: 1},
			{Prompt: []int32{1}, MaxTokens: 1, TopP: 2}, {Prompt: []int32{1}, MaxTokens: 40, TopP: 1},
			{Prompt: make([]int32, 256), MaxTokens: 1, TopP: 1},
		} {
			if _, err := e.Run(context.Background(), []Request{q}); err == nil {
				t.Errorf("%+v was accepted", q)
			}
			e.dropAll()
		}
	})
}

// A prompt must leave at least one position to generate.
func TestFullPrompt(t *testing.T) {
	for rows, fits := range map[int]bool{15: true, 16: false, 17: false} {
		q := Request{Prompt: make([]int32, rows), MaxTokens: 1, TopP: 1}
		if err := q.validate(1, 16); (err == nil) != fits {
			t.Errorf("a prompt of %d tokens for 16 positions: %v", rows, err)
		}
	}
}

func TestVerify(t *testing.T) {
	tc16 := kernels.Default()
	tc16.Dot = kernels.DotTC16
	ex2h := tc16
	ex2h.Exp2 = kernels.Exp2Ex2h
	for _, c := range []struct {
		def    kernels.Definition
		dtype  kernels.DType
		tokens int
	}{{kernels.Default(), kernels.F32, 6000}, {kernels.Default(), kernels.BF16, 1000}, {tc16, kernels.BF16, 1000},
		{ex2h, kernels.BF16, 1000}} {
		for i, family := range families {
			if i >= 3 { // each of these adds one layer kind
				c.tokens = 600
			}
			name := fmt.Sprintf("%s/%s/%s/%s", family, c.def.Dot, c.def.Exp2, c.dtype)
			t.Run(name, func(t *testing.T) { verifies(t, family, c.def, c.dtype, c.tokens) })
			other := c.def
			switch family {
			case "glm5", "glm5_shared":
				other.Latent = kernels.LatentExpanded
			case "kimi_k2":
				other.Latent = kernels.LatentAbsorbed
			default:
				continue
			}
			t.Run(name+"/"+string(other.Latent), func(t *testing.T) { verifies(t, family, other, c.dtype, c.tokens) })
		}
	}
}

// With keys and values in MXFP8 decoding is prefill is training in every family.
func TestVerifyCache(t *testing.T) {
	for _, c := range cacheCases(t) {
		t.Run(c.String(), func(t *testing.T) { verifies(t, c.family, c.def, c.dtype, 1000) })
	}
}

func verifies(t *testing.T, family string, def kernels.Definition, dtype kernels.DType, tokens int) {
	served(t, family, def, dtype, func(r *parallel.Rank, s *ServedModel) {
		rep, err := Verify(context.Background(), s.Ranks, VerifyOptions{Tokens: tokens, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		if all := rep.Totals(); all.Mismatches != 0 || all.KL != 0 || all.Tokens < tokens || all.LogProbs == 0 {
			t.Errorf("%s\n%s", rep.First, rep.Table())
		}
		for _, w := range rep.Comparisons {
			if w.Tokens == 0 {
				t.Errorf("%s was not compared", w.Name)
			}
		}
	})
}

// Every round has a sequence of MaxLength, bounded by the model's length.
func TestVerifyMaxLength(t *testing.T) {
	served(t, "qwen3_moe", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		for longest, want := range map[int]int{200: 200, 5000: s.Model.MaxLength} {
			rep, err := Verify(context.Background(), s.Ranks, VerifyOptions{Tokens: 1, Seed: 1, MaxLength: longest})
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range rep.Comparisons[pathPrefill:] {
				if w.Tokens < want-16 || w.Mismatches != 0 { // the prompt of what is decoded has up to 16
					t.Errorf("longest %d: %s: %d positions, %d mismatches", longest, w.Name, w.Tokens, w.Mismatches)
				}
			}
		}
	})
}

// A round with a long sequence has others too, some with the same prefix, so that they share pages and compete for
// them.
func TestDrawMaxLength(t *testing.T) {
	m := &model.Model{MaxLength: 8192, Vocab: 320}
	p := newComparer(new(parallel.Rank), m, 1)
	shared := 0
	for range 20 {
		p.traffic = new(traffic)
		budget, longest := roundSize(m, 4096, 8192, 1)
		p.drawSequences(nil, budget, longest, 8192)
		if len(p.seqs) < 2 || len(p.seqs[0]) != 8192 {
			t.Fatalf("%d sequences, the first of %d tokens", len(p.seqs), len(p.seqs[0]))
		}
		for _, s := range p.seqs[1:] {
			if n := min(len(s), 16); slices.Equal(s[:n], p.seqs[0][:n]) {
				shared++
			}
		}
	}
	if shared == 0 {
		t.Error("no sequence shares a prefix with the long one")
	}
}
