package serve

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/broken"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
)

// The shortest verification compares every path, whatever the random sequences and however short the corpus.
func TestVerifyEveryPath(t *testing.T) {
	served(t, "qwen3", kernels.Default(), kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		for seed := range uint64(40) {
			o := VerifyOptions{Tokens: 1, Seed: seed}
			if seed%2 == 1 {
				o.Corpus = [][]int32{{5}, {7, 9}}
			}
			rep, err := Verify(context.Background(), s.Ranks, o)
			if err != nil {
				t.Fatal(err)
			}
			if err := rep.Err(); err != nil || rep.Rounds != 1 {
				t.Errorf("seed %d, %d rounds: %v\n%s", seed, rep.Rounds, err, rep.Table())
			}
		}
	})
}

// A path that was not compared is an error, and the table marks it.
func TestVerifyNotCompared(t *testing.T) {
	rep := &VerifyReport{Digest: strings.Repeat("0", 64)}
	for i, name := range paths {
		rep.Comparisons = append(rep.Comparisons, Comparison{Name: name, Tokens: i, Logits: i})
	}
	if err := rep.Err(); err == nil || !strings.Contains(err.Error(), "not compared: packed training") {
		t.Errorf("without packed training: %v", err)
	}
	table := rep.Table()
	if !strings.Contains(table, "packed training: not compared") || strings.Count(table, "not compared") != 1 {
		t.Error(table)
	}
	rep.Comparisons[0].Tokens = 1
	if err := rep.Err(); err != nil {
		t.Errorf("with every path: %v", err)
	}
}

// breakCase is a golden checkpoint with an adapter, a form of latent attention and a definition.
type breakCase struct {
	family, adapter string
	latent          kernels.LatentForm
	def             kernels.Definition
	dtype           kernels.DType
}

func (c breakCase) String() string {
	return fmt.Sprintf("%s/%s/%s/%s%s%s", c.family, c.adapter, c.latent, c.def.Dot, c.def.Acts, c.def.Cache)
}

// breakCases are all golden checkpoints, with each of their adapters and both forms of latent attention, by the
// definition of a CPU and by that of a GPU.
func breakCases(t *testing.T) (cases []breakCase) {
	t.Helper()
	tc16 := kernels.Default()
	tc16.Dot, tc16.Exp2 = kernels.DotTC16, kernels.Exp2Ex2h
	for _, family := range goldenFamilies(t) {
		for _, adapter := range append([]string{""}, adaptersOf(t, family)...) {
			for _, latent := range latentForms(t, family) {
				c := breakCase{family, adapter, latent, kernels.Default(), kernels.F32}
				gpu := breakCase{family, adapter, latent, tc16, kernels.BF16}
				c.def.Latent, gpu.def.Latent = latent, latent
				cases = append(cases, c, gpu)
			}
		}
	}
	for acts, c := range map[quant.Encoding]breakCase{quant.MXFP8: {"kimi_k2", "", kernels.LatentExpanded, tc16,
		kernels.BF16}, quant.FP8x128: {"qwen3_moe", "", "", tc16, kernels.BF16}} {
		c.def.Acts = acts
		cases = append(cases, c)
	}
	for i, c := range cacheCases(t) {
		if i%3 == 0 {
			cases = append(cases, c)
		}
	}
	return cases
}

// cacheCases are all families with keys and values in MXFP8, by one of two definitions each.
func cacheCases(t *testing.T) (cases []breakCase) {
	t.Helper()
	for i, family := range goldenFamilies(t) {
		c := breakCase{family, "", latentForms(t, family)[0], kernels.Default(), kernels.F32}
		if i%2 == 0 {
			c.def.Dot, c.def.Exp2, c.dtype = kernels.DotTC16, kernels.Exp2Ex2h, kernels.BF16
		}
		c.def.Latent, c.def.Cache = c.latent, quant.MXFP8
		cases = append(cases, c)
	}
	return cases
}

// goldenFamilies lists the golden folders that package model can open.
func goldenFamilies(t *testing.T) (names []string) {
	t.Helper()
	found, err := filepath.Glob(goldens + "*/config.json")
	if err != nil || len(found) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// else a test of package model registers its family
		if _, err := model.Describe(text, kernels.F32); err == nil {
			names = append(names, filepath.Base(filepath.Dir(path)))
		}
	}
	return names
}

// adaptersOf lists the golden adapters of a family.
func adaptersOf(t *testing.T, family string) (names []string) {
	t.Helper()
	for _, name := range []string{family, family + "_experts"} {
		if _, err := os.Stat(goldens + "adapters/" + name); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// latentForms are the forms of latent attention that a family has.
func latentForms(t *testing.T, family string) []kernels.LatentForm {
	t.Helper()
	text, err := os.ReadFile(goldens + family + "/config.json")
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Describe(text, kernels.F32)
	if err != nil {
		t.Fatal(err)
	}
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			if _, ok := sub.Layer.(*model.MLA); ok {
				return []kernels.LatentForm{kernels.LatentAbsorbed, kernels.LatentExpanded}
			}
		}
	}
	return []kernels.LatentForm{kernels.LatentAuto}
}

// onGolden runs body with a golden checkpoint on a device.
func onGolden(t *testing.T, c breakCase, dev kernels.Device, body func(r *parallel.Rank, m *model.Model)) {
	t.Helper()
	err := parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		adapter := c.adapter
		if adapter != "" {
			adapter = goldens + "adapters/" + adapter
		}
		o := model.Options{DType: c.dtype}
		if c.def.Acts != quant.AsTrained {
			o.Encode = model.DefaultEncode(map[quant.Encoding]quant.Encoding{quant.MXFP8: quant.MXFP8,
				quant.FP8x128: quant.FP8}[c.def.Acts])
		}
		s, err := Open(nil, r, goldens+c.family, adapter, o)
		if err != nil {
			return err
		}
		body(r, s.Model)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// positionsToCatch runs Verify with several seeds until it notices the broken rule, and returns how many positions that
// took. It returns an error if the rule does not apply, or goes unnoticed in 4,096 positions.
func positionsToCatch(s Ranks, reference *model.Model) (tokens int, err error) {
	for seed := uint64(1); ; seed++ {
		rep, err := Verify(context.Background(), s, VerifyOptions{Tokens: 192, Seed: seed, Reference: reference})
		if err != nil {
			return tokens, err
		}
		tokens += rep.Totals().Tokens
		switch {
		case tokens > 4096:
			return tokens, fmt.Errorf("not caught in %d tokens", tokens)
		case rep.Totals().Mismatches > 0:
			return tokens, nil
		}
	}
}

// refusal matches the error for a rule that does not apply.
var refusal = regexp.MustCompile(`^rule "[a-z-]+" does not apply to this \w+ model: want one of \[.*"split-k".*\]$`)

// Verify catches every broken rule that applies to a model and rejects the others. Adapters are tested with their own
// rule alone.
func TestVerifyCatches(t *testing.T) {
	seen := map[kernels.Break]bool{}
	for _, c := range breakCases(t) {
		t.Run(c.String(), func(t *testing.T) {
			dev, err := cpu.New(c.def, cpu.Options{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			catches(t, c, dev, seen)
		})
	}
	for _, rule := range kernels.Breaks {
		if !seen[rule] && rule != kernels.BreakRankSums { // for that see TestVerifyCatchesRankSums
			t.Errorf("%s applies to no golden checkpoint", rule)
		}
	}
}

// catches breaks every rule on a golden checkpoint and marks in seen those that apply.
func catches(t *testing.T, c breakCase, dev kernels.Device, seen map[kernels.Break]bool) {
	t.Helper()
	onGolden(t, c, dev, func(r *parallel.Rank, m *model.Model) {
		for _, rule := range kernels.Breaks {
			if c.adapter != "" && rule != kernels.BreakAdapter ||
				c.def.Cache != quant.AsTrained && rule != kernels.BreakCache {
				continue
			}
			wrong, err := broken.New(r.Dev, rule)
			if err != nil {
				t.Fatal(err)
			}
			m.ComputeWith(wrong)
			tokens, err := positionsToCatch(OneRank(&parallel.Rank{Dev: wrong, Stack: r.Stack}, m), nil)
			if slices.Contains(m.Breaks(), rule) {
				seen[rule] = true
				if err != nil {
					t.Errorf("%s: %v", rule, err)
				}
				t.Logf("%s: %d tokens", rule, tokens)
			} else if err == nil || !refusal.MatchString(err.Error()) {
				t.Errorf("%s does not apply: %v", rule, err)
			}
		}
	})
}
