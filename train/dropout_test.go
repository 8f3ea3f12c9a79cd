package train

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/model/peft"
	"lockstep/train/testshape"
)

// Dropout draws the same masks for any micro-batch, recomputation, mesh and resumed run; each step, seed and
// probability has masks of its own.
func TestDropout(t *testing.T) {
	base := []string{"lora.rank=4", "lora.dropout=0.25", "run.packs=5", "run.steps=4", "optim.schedule=constant",
		"optim.warmup_steps=0", "run.save_every=0", "definition.segment=64", "lora.targets=q_proj,k_proj,o_proj",
		"model.config.num_key_value_heads=2"}
	run := func(out string, resume bool, more ...string) string {
		s, err := testshape.Parse(append(slices.Clone(base), more...))
		if err != nil {
			t.Fatal(err)
		}
		if s.Parallel.Ranks > 1 {
			if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, 1)); err != nil {
				t.Fatal(err)
			}
			return checkpointDigest(t, out)
		}
		digest, err := runTiny(t, out, resume, append(slices.Clone(base), more...)...)
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "run")
	want := run(out, false)
	text := readBytes(t, filepath.Join(out, "adapter", peft.File))
	if !strings.Contains(text, `"lora_dropout": 0.25,`) {
		t.Errorf("saved as %s", text)
	}
	for name, set := range map[string][]string{
		"micro-batch":      {"run.micro_batch=3"},
		"recomputed":       {"run.recompute=full", "run.micro_batch=2"},
		"ranks":            {"parallel.ranks=3"},
		"context":          {"parallel.ranks=2", "parallel.context=2", "run.micro_batch=2"},
		"sharded, experts": {"parallel.ranks=2", "parallel.experts=2", "parallel.weights=sharded", "run.micro_batch=2"},
		"lanes":            {"parallel.ranks=2", "parallel.experts=2", "parallel.interleave=2", "run.micro_batch=2"},
	} {
		if got := run(filepath.Join(dir, name), false, set...); got != want {
			t.Errorf("%s: other bits", name)
		}
	}
	resumed := filepath.Join(dir, "resumed")
	run(resumed, false, "run.steps=2")
	if got := run(resumed, true); got != want {
		t.Error("a resumed run has other bits")
	}
	for name, set := range map[string][]string{
		"none": {"lora.dropout=0"}, "less": {"lora.dropout=0.2"},
	} {
		if run(filepath.Join(dir, name), false, set...) == want {
			t.Errorf("dropout changes nothing: %s", name)
		}
	}
}

// Adapters on weights of experts have no dropout in PEFT, and a run of reinforcement learning none here.
func TestDropoutRefused(t *testing.T) {
	for want, set := range map[string][]string{
		"weight of experts":   {"lora.rank=4", "lora.dropout=0.1", "lora.targets=all-linear"},
		"remove lora.dropout": append(testshape.RL(), "lora.rank=4", "lora.dropout=0.1"),
		"no adapters":         {"lora.dropout=0.1"},
	} {
		s, err := testshape.Parse(set)
		if err == nil {
			err = Run(context.Background(), s, Options{Out: filepath.Join(t.TempDir(), "run"), Log: nil})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", set, err, want)
		}
	}
}
