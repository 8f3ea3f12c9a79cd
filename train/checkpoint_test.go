package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// A checkpoint with another bit than when it was written is not read: a run goes on from the one before, says so, and
// comes to the same bits. Where none is left, it begins again.
func TestDamagedCheckpoint(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	set := []string{"run.steps=3", "optim.warmup_steps=1", "data.eval_samples=0"}
	want, err := runTiny(t, out, false, set...)
	if err != nil {
		t.Fatal(err)
	}
	began := readRecords(t, out)[0].Time
	last := filepath.Join(out, checkpointsDir, checkpointName(3))
	if _, err := readState(last); err != nil {
		t.Fatal(err)
	}
	for _, damage := range []struct {
		what string
		by   func(dir string)
		want string
	}{
		{"optimizer", func(dir string) { touch(t, filepath.Join(dir, optimizerFile)) }, "has a different checksum"},
		{"weights", func(dir string) {
			touch(t, filepath.Join(dir, weightsDir, "model.safetensors"))
		}, "different checksum"},
		{"config", func(dir string) { touch(t, filepath.Join(dir, weightsDir, "config.json")) }, "different checksum"},
		{"missing", func(dir string) { os.Remove(filepath.Join(dir, optimizerFile)) }, "no such file"},
		{"state", func(dir string) { os.Truncate(filepath.Join(dir, stateFile), 40) }, "state.json has a different"},
		{"no state", func(dir string) { os.Remove(filepath.Join(dir, stateFile)) }, "no such file"},
		{"sums", func(dir string) { touch(t, filepath.Join(dir, sumsFile)) }, "SHA256SUMS"},
		{"half of the sums", func(dir string) { os.Truncate(filepath.Join(dir, sumsFile), 100) }, "SHA256SUMS, line "},
		{"no sums", func(dir string) { os.Remove(filepath.Join(dir, sumsFile)) }, "no such file"},
	} {
		damage.by(last)
		if _, err := readState(last); err == nil || !strings.Contains(err.Error(), damage.want) {
			t.Errorf("%s: %v, want %q", damage.what, err, damage.want)
		}
		if got, err := runTiny(t, out, true, set...); err != nil || got != want {
			t.Errorf("%s: resumed to %s, want %s (%v)", damage.what, got, want, err)
		}
		if r := readRecords(t, out); len(r) != 3 || !r[0].Time.Equal(began) {
			t.Errorf("%s: %d records, the first of %v, want 3 and that of %v", damage.what, len(r), r[0].Time, began)
		}
	}
	for _, step := range []int{2, 3} {
		touch(t, filepath.Join(out, checkpointsDir, checkpointName(step), optimizerFile))
	}
	if got, err := runTiny(t, out, true, set...); err != nil || got != want {
		t.Errorf("from the beginning: %s, want %s (%v)", got, want, err)
	}
	if again := readRecords(t, out)[0].Time; !again.After(began) {
		t.Errorf("the first record is of %v, as it was: the test shows nothing", again)
	}
}

// No flipped bit of a state is resumed from: of its step, its place in the data, its definition and all else. Neither
// is a checkpoint under another step's name.
func TestFlippedState(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	set := []string{"run.steps=2", "optim.warmup_steps=1", "data.eval_samples=0"}
	want, err := runTiny(t, out, false, set...)
	if err != nil {
		t.Fatal(err)
	}
	last := filepath.Join(out, checkpointsDir, checkpointName(2))
	path := filepath.Join(last, stateFile)
	whole, flips := readBytes(t, path), 0
	for at := 0; at < len(whole); at += 1 + len(whole)/60 {
		text := []byte(whole)
		text[at] ^= 1
		writeText(t, path, string(text))
		if _, err := readState(last); err == nil || !strings.Contains(err.Error(), "different checksum") {
			t.Errorf("bit of byte %d, %q: %v", at, whole[at], err)
		}
		flips++
	}
	if flips < 50 {
		t.Errorf("%d bits were flipped", flips)
	}
	if got, err := runTiny(t, out, true, set...); err != nil || got != want {
		t.Errorf("resumed from a flipped state to %s, want %s (%v)", got, want, err)
	}
	if err := os.Rename(last, filepath.Join(out, checkpointsDir, checkpointName(7))); err != nil {
		t.Fatal(err)
	}
	var notes []string
	_, err = loadCheckpoint(nil, nil, out, func(*state) string { return "taken" }, func(format string, args ...any) {
		notes = append(notes, fmt.Sprintf(format, args...))
	})
	if len(notes) != 1 || !strings.Contains(notes[0], "state.json has step 2") ||
		err != nil && strings.Contains(err.Error(), checkpointName(7)) {
		t.Errorf("a checkpoint of another name: %q, error %v", notes, err)
	}
}

// A checkpoint of an earlier version, whose state has no checksum, is refused: the run does not begin again over it.
func TestEarlierCheckpoint(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	set := []string{"run.steps=2", "optim.warmup_steps=1", "data.eval_samples=0"}
	if _, err := runTiny(t, out, false, set...); err != nil {
		t.Fatal(err)
	}
	last := filepath.Join(out, checkpointsDir, checkpointName(2))
	path := filepath.Join(last, stateFile)
	writeText(t, path, strings.Replace(readBytes(t, path), "{", `{"files": {"optimizer.safetensors": "0"},`, 1))
	if err := os.Remove(filepath.Join(last, sumsFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := runTiny(t, out, true, set...); err == nil || !strings.Contains(err.Error(), "earlier version") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("resumed from a checkpoint without sums: %v", err)
	}
}

// Checkpoints are listed newest first, complete ones alone, and the newest are kept.
func TestPrune(t *testing.T) {
	parent := t.TempDir()
	names := []string{checkpointName(100), checkpointName(10), checkpointName(9)}
	others := []string{"step-00000011.old", ".step-00000012", "other"}
	for _, name := range append(others, names...) {
		if err := os.Mkdir(filepath.Join(parent, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeText(t, filepath.Join(parent, "step-00000200"), "a file")
	for keep := 3; keep > 0; keep-- {
		if err := prune(parent, keep); err != nil {
			t.Fatal(err)
		}
		if got, err := listCheckpoints(parent); err != nil || !slices.Equal(got, names[:keep]) {
			t.Errorf("keep %d: %v, want %v (%v)", keep, got, names[:keep], err)
		}
	}
	for _, name := range append(others, "step-00000200") {
		if _, err := os.Stat(filepath.Join(parent, name)); err != nil {
			t.Errorf("%s was removed", name)
		}
	}
	if names, err := listCheckpoints(filepath.Join(parent, "none")); err != nil || len(names) != 0 {
		t.Errorf("a run without checkpoints has %v (%v)", names, err)
	}
}

// A run writes checkpoints, records and evaluations at the steps that its shape asks for, and at its end.
func TestDueSteps(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	_, err := runTiny(t, out, false, "run.steps=7", "run.save_every=3", "run.keep=9", "run.log_every=4",
		"run.eval_every=3",
		"rollout.max_tokens=2")
	if err != nil {
		t.Fatal(err)
	}
	names, err := listCheckpoints(filepath.Join(out, checkpointsDir))
	want := []string{checkpointName(7), checkpointName(6), checkpointName(3)}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("checkpoints %v, want %v (%v)", names, want, err)
	}
	var logged, evaluated []int
	for _, r := range readRecords(t, out) {
		logged = append(logged, r.Step)
		if r.EvalLoss != nil && r.EvalAccuracy != nil && r.EvalSamples == 4 {
			evaluated = append(evaluated, r.Step)
		}
	}
	if !slices.Equal(logged, []int{1, 3, 4, 6, 7}) || !slices.Equal(evaluated, []int{3, 6, 7}) {
		t.Errorf("records of steps %v, evaluations of %v", logged, evaluated)
	}
}

// Reinforcement learning starts with moments of zero: those of the warm start's loss are gone from the checkpoint that
// the stage starts from. The masters of bf16 weights are there.
func TestStartCheckpoint(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	set := append(testshape.RL(), "warm_start.steps=2", "run.steps=1", "model.dtype=bf16", "data.eval_samples=0")
	if _, err := runTiny(t, out, false, set...); err != nil {
		t.Fatal(err)
	}
	for dir, cleared := range map[string]bool{startDir: true, filepath.Join(checkpointsDir, checkpointName(2)): false} {
		f, err := safetensors.Open(filepath.Join(out, dir, optimizerFile))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, name := range f.Checkpoint().Names() {
			tensor, _ := f.Checkpoint().Tensor(name)
			kind := name[strings.LastIndexByte(name, '.'):]
			seen[kind]++
			zero := !slices.ContainsFunc(tensor.Data, func(b byte) bool { return b != 0 })
			if moment := kind != ".master"; zero && (!moment || !cleared) || !zero && moment && cleared {
				t.Errorf("%s: %s is zero: %t", dir, name, zero)
			}
		}
		n := seen[".exp_avg"]
		if len(seen) != 3 || n == 0 || n != seen[".exp_avg_sq"] || n != seen[".master"] {
			t.Errorf("%s: tensors %v", dir, seen)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What a killed run logged of steps after its checkpoint is cut off, so that each step is in the log once; a line that
// it left half-written too.
func TestCutEpisodes(t *testing.T) {
	dir := t.TempDir()
	if err := runlog.CutEpisodes(dir, 3); err != nil || !errors.Is(runlog.EachEpisode(dir, nil), os.ErrNotExist) {
		t.Fatalf("a run without answers: %v", err)
	}
	made := func(step, asked int) *runlog.Episode {
		return &runlog.Episode{Step: step, Asked: asked, Prompt: []int32{1}, IDs: []int32{2}, LogProbs: []float32{-1},
			Versions: []int{0}}
	}
	for step := 1; step <= 4; step++ {
		if err := runlog.AppendEpisodes(dir, []*runlog.Episode{made(step, 2*step), made(step, 2*step+1)}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, runlog.EpisodesFile)
	whole := readBytes(t, path)
	writeText(t, path, whole+strings.TrimSpace(whole)[:17])
	for _, step := range []int{3, 3, 2, 0} {
		if err := runlog.CutEpisodes(dir, step); err != nil {
			t.Fatal(err)
		}
		want := strings.Join(strings.SplitAfter(whole, "\n")[:2*step], "")
		if got := readBytes(t, path); got != want {
			t.Errorf("cut after step %d:\n%swant\n%s", step, got, want)
		}
	}
}
