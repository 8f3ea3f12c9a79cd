package train

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/model/peft"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// adapterSums are the checksums of the adapter and of the optimizer's state in a run's last checkpoint.
func adapterSums(t *testing.T, out string) string {
	t.Helper()
	name, files := lastSums(t, out)
	weights := files["model/adapter_model.safetensors"]
	if weights == "" {
		t.Fatalf("%s of %s has no adapter", name, out)
	}
	return name + " " + weights + " " + files[optimizerFile]
}

// fewTargets are adapters on projections and experts, of more than one rank and scale.
var fewTargets = []string{
	"lora.rank=4", "lora.targets=all-linear", "lora.rank_pattern=q_proj=3,down_proj=2", "lora.alpha_pattern=o_proj=8",
	"lora.use_rslora=true", "optim.warmup_steps=0", "optim.schedule=constant", "run.save_every=1",
}

// stages are runs that start from the adapter of the run before.
func stages(t *testing.T) []struct {
	name string
	set  []string
} {
	return []struct {
		name string
		set  []string
	}{
		{"sft", fewTargets},
		{"dpo", append(tinyPairs(t), "optim.lr=1e-3")},
		{"rl", append(testshape.RL(), "warm_start.steps=0", "rl.objective=dapo", "rl.kl_coef=0.1")},
	}
}

// One adapter learns from samples, then from pairs, then by reinforcement. Each stage starts where the one before has
// ended, which is its reference too, and is resumed to the same bits.
func TestStagesOfOneAdapter(t *testing.T) {
	var before string
	for _, stage := range stages(t) {
		set := slices.Concat(stage.set, []string{"optim.schedule=constant", "optim.warmup_steps=0"})
		if before != "" {
			set = append(set, "lora.path="+filepath.Join(before, "adapter"))
		}
		out := filepath.Join(t.TempDir(), stage.name)
		if _, err := runTiny(t, out, false, append(set, "run.steps=5")...); err != nil {
			t.Fatal(stage.name, err)
		}
		startsThere(t, stage.name, out)
		want := adapterSums(t, out)
		halves := filepath.Join(t.TempDir(), stage.name)
		if _, err := runTiny(t, halves, false, append(set, "run.steps=2")...); err != nil {
			t.Fatal(stage.name, err)
		}
		if _, err := runTiny(t, halves, true, append(set, "run.steps=5")...); err != nil {
			t.Fatal(stage.name, err)
		}
		if got := adapterSums(t, halves); got != want {
			t.Errorf("%s: resumed %s, want %s", stage.name, got, want)
		}
		if before != "" {
			fresh := filepath.Join(t.TempDir(), stage.name)
			anew := slices.Concat(stage.set, fewTargets, []string{"run.steps=5"})
			if _, err := runTiny(t, fresh, false, anew...); err != nil || adapterSums(t, fresh) == want {
				t.Errorf("%s: a new adapter gives the same bits (%v)", stage.name, err)
			}
		}
		before = out
	}
	replayed, err := Replay(context.Background(), before, nil, os.Stderr)
	if err != nil || replayed.Err() != nil {
		t.Errorf("replay: %v (%v)", replayed, err)
	}
}

// startsThere wants the first step of a stage to be at its reference.
func startsThere(t *testing.T, stage, out string) {
	t.Helper()
	records, err := runlog.ReadMetrics(out)
	if err != nil {
		t.Fatal(err)
	}
	first := records[0]
	switch stage {
	case "dpo":
		if *first.Margin != 0 || *records[len(records)-1].Margin == 0 {
			t.Errorf("margin %v at the first step, %v at the last", *first.Margin, *records[len(records)-1].Margin)
		}
	case "rl":
		if first.ReferenceKL == nil || *first.ReferenceKL != 0 {
			t.Errorf("KL to the reference %v at the first step", first.ReferenceKL)
		}
	}
}

// A shape that asks for other adapters than lora.path has is refused by the projection, before anything is written; one
// that agrees, or asks for nothing, is not.
func TestAdapterPathDiffers(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, append(fewTargets, "run.steps=1")...); err != nil {
		t.Fatal(err)
	}
	path := "lora.path=" + filepath.Join(out, "adapter")
	for _, c := range []struct {
		set  []string
		want string
	}{
		{fewTargets, ""},
		{nil, ""},
		{append(slices.Clone(fewTargets), "lora.rank=5"), "rank 5"},
		{append(slices.Clone(fewTargets), "lora.alpha=31"), "scale"},
		{append(slices.Clone(fewTargets), "lora.use_rslora=false"), "scale"},
		{append(slices.Clone(fewTargets), "lora.targets=q_proj,o_proj,down_proj"), "no adapter"},
		{append(slices.Clone(fewTargets), "lora.modules_to_save=norm"), "modules_to_save"},
		{append(slices.Clone(fewTargets), "lora.rank_pattern=nose=1"), "nose"},
		{[]string{"model.config.num_hidden_layers=1"}, "layers.1"},
	} {
		again := filepath.Join(t.TempDir(), "again")
		_, err := runTiny(t, again, false, append(slices.Clone(c.set), path, "run.steps=1", "optim.warmup_steps=0")...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n")) {
			t.Errorf("%v: error %v, want one line with %q", c.set, err, c.want)
		}
		if _, err := os.Stat(again); c.want != "" && err == nil {
			t.Errorf("%v: something was written", c.set)
		}
	}
}

// An adapter that was trained with dropout goes on without, and the run says so; what it saves has none.
func TestAdapterWithDropout(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, append(fewTargets, "run.steps=1")...); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(out, "adapter", peft.File)
	writeText(t, config, strings.Replace(readBytes(t, config), `"lora_dropout": 0`, `"lora_dropout": 0.125`, 1))
	s, err := testshape.Parse([]string{"lora.path=" + filepath.Join(out, "adapter"), "run.steps=1"})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	again := filepath.Join(t.TempDir(), "again")
	if err := Run(context.Background(), s, Options{Out: again, Log: log}); err != nil {
		t.Fatal(err)
	}
	if text := readBytes(t, log.Name()); !strings.Contains(text, "lora_dropout 0.125") {
		t.Errorf("the run says nothing of dropout:\n%s", text)
	}
	if text := readBytes(t, filepath.Join(again, "adapter", peft.File)); !strings.Contains(text, `"lora_dropout": 0,`) {
		t.Errorf("saved with dropout:\n%s", text)
	}
}

// Modules that are saved with the adapters are trained, stored, and are where the next run starts.
func TestModulesToSave(t *testing.T) {
	set := []string{"lora.rank=2", "lora.modules_to_save=lm_head,norm", "model.config.tie_word_embeddings=false",
		"optim.warmup_steps=0", "optim.schedule=constant"}
	out := filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, append(set, "run.steps=2")...); err != nil {
		t.Fatal(err)
	}
	want := adapterSums(t, out)
	more := filepath.Join(t.TempDir(), "more")
	if _, err := runTiny(t, more, false, append(set, "run.steps=1", "run.save_every=1")...); err != nil {
		t.Fatal(err)
	}
	if _, err := runTiny(t, more, true, append(set, "run.steps=2")...); err != nil || adapterSums(t, more) != want {
		t.Errorf("resumed: %s, want %s (%v)", adapterSums(t, more), want, err)
	}
	for _, name := range []string{"lm_head.weight", "model.norm.weight"} {
		first, last := storedTensor(t, more, 1, name), storedTensor(t, more, 2, name)
		if first == "" || first == last {
			t.Errorf("%s: %d bytes that training does not change", name, len(first))
		}
	}
	next := filepath.Join(t.TempDir(), "next")
	tied := []string{"model.config.tie_word_embeddings=false", "run.steps=1", "optim.warmup_steps=0",
		"lora.path=" + filepath.Join(out, "adapter")}
	if _, err := runTiny(t, next, false, tied...); err != nil {
		t.Error(err)
	}
	_, err := runTiny(t, filepath.Join(t.TempDir(), "tied"), false, "lora.rank=2",
		"lora.modules_to_save=lm_head")
	if err == nil || !strings.Contains(err.Error(), "lm_head") {
		t.Errorf("tied: error %v", err)
	}
}

// storedTensor is a tensor of the adapter of a checkpoint; "": it has none.
func storedTensor(t *testing.T, out string, step int, name string) string {
	t.Helper()
	path := filepath.Join(out, checkpointsDir, checkpointName(step), weightsDir, "adapter_model.safetensors")
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tensor, _ := f.Checkpoint().Tensor("base_model.model." + name)
	return string(tensor.Data)
}

// The reference of pairs belongs to the adapter that a run started from: another one in its place is refused.
func TestReferenceOfAdapter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "adapter")
	from := func(seed string) {
		out := filepath.Join(t.TempDir(), "run")
		if _, err := runTiny(t, out, false, append(fewTargets, "run.steps=2", seed)...); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.RemoveAll(path), os.Rename(filepath.Join(out, "adapter"), path)); err != nil {
			t.Fatal(err)
		}
	}
	from("lora.seed=1")
	set := append(tinyPairs(t), "lora.path="+path, "optim.warmup_steps=0", "run.steps=2")
	out := filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, set...); err != nil {
		t.Fatal(err)
	}
	from("lora.seed=2")
	if _, err := runTiny(t, out, true, set...); err == nil || !strings.Contains(err.Error(), "other weights") {
		t.Errorf("another adapter in its place: error %v", err)
	}
}
