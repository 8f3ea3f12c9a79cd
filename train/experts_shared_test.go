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

// Shared factors of experts are the same bits for any micro-batch, mesh and resumed run, clipped by a norm that counts
// each once. A run that starts from such an adapter shares them too.
func TestSharedExperts(t *testing.T) {
	base := []string{"run.packs=5", "run.steps=4", "optim.schedule=constant",
		"optim.warmup_steps=0", "run.save_every=0", "definition.segment=64", "optim.clip=0.05"}
	shared := []string{"lora.rank=4", "lora.experts=shared", "lora.targets=q_proj,gate_proj,up_proj,down_proj"}
	run := func(out string, resume bool, more ...string) string {
		s, err := testshape.Parse(slices.Concat(base, more))
		if err != nil {
			t.Fatal(err)
		}
		if s.Parallel.Ranks > 1 {
			if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, 1)); err != nil {
				t.Fatal(err)
			}
			return checkpointDigest(t, out)
		}
		digest, err := runTiny(t, out, resume, slices.Concat(base, more)...)
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "run")
	want := run(out, false, shared...)
	if text := readBytes(t, filepath.Join(out, "adapter", peft.File)); !strings.Contains(text, `"experts": "shared"`) {
		t.Errorf("saved as %s", text)
	}
	for name, set := range map[string][]string{
		"micro-batch":      {"run.micro_batch=3"},
		"recomputed":       {"run.recompute=full", "run.micro_batch=2"},
		"ranks":            {"parallel.ranks=3"},
		"sharded":          {"parallel.ranks=2", "parallel.weights=sharded"},
		"experts":          {"parallel.ranks=3", "parallel.experts=3"},
		"sharded, experts": {"parallel.ranks=2", "parallel.experts=2", "parallel.weights=sharded", "run.micro_batch=2"},
		"lanes":            {"parallel.ranks=2", "parallel.experts=2", "parallel.interleave=2", "run.micro_batch=2"},
		"offload":          {"offload.optimizer=true"},
	} {
		if got := run(filepath.Join(dir, name), false, slices.Concat(shared, set)...); got != want {
			t.Errorf("%s: other bits", name)
		}
	}
	resumed := filepath.Join(dir, "resumed")
	run(resumed, false, append(slices.Clone(shared), "run.steps=2")...)
	if got := run(resumed, true, shared...); got != want {
		t.Error("a resumed run has other bits")
	}
	if run(filepath.Join(dir, "each"), false, append(slices.Clone(shared), "lora.experts=each")...) == want {
		t.Error("factors each are the same bits")
	}
	next := filepath.Join(dir, "next")
	run(next, false, "lora.path="+filepath.Join(out, "adapter"))
	if text := readBytes(t, filepath.Join(next, "adapter", peft.File)); !strings.Contains(text, `"experts": "shared"`) {
		t.Errorf("a run that starts from it saved %s", text)
	}
}

// What cannot be shared is refused.
func TestSharedExpertsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	targets := "lora.targets=gate_proj,up_proj,down_proj"
	if _, err := runTiny(t, dir, false, "lora.rank=2", targets, "run.steps=1"); err != nil {
		t.Fatal(err)
	}
	path := "lora.path=" + filepath.Join(dir, "adapter")
	for want, set := range map[string][]string{
		"none has an adapter":       {"lora.rank=4", "lora.experts=shared", "lora.targets=q_proj"},
		"the shape asks for shared": {"lora.rank=2", path, "lora.experts=shared", targets},
		"has its own":               {path, "lora.experts=shared"},
		`want "each" or "shared"`:   {"lora.rank=4", "lora.experts=one"},
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
