package train

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// A run that is resumed with more steps, or more epochs, ends with the bits of one that had them from its start,
// whatever it evaluates, saves, proves and logs meanwhile.
func TestProlonged(t *testing.T) {
	constant := []string{"optim.schedule=constant"}
	other := []string{
		"run.eval_every=3", "run.save_every=2", "run.keep=1", "run.log_every=2", "run.verify_tokens=16",
		"run.recompute=true", "data.eval_samples=3", "rollout.temperature=0.5", "rollout.top_k=3",
	}
	steps := func(n int) []string { return []string{fmt.Sprintf("run.steps=%d", n)} }
	pairs := slices.Concat(tinyPairs(t), constant, []string{"data.eval_samples=3"})
	epochs := append(steps(0), "optim.schedule=constant", "run.packs=1")
	for name, c := range map[string]struct{ set, first, then []string }{
		"supervised": {constant, steps(5), steps(9)},
		"warming up": {[]string{"optim.warmup_steps=5"}, steps(5), steps(9)},
		"epochs":     {epochs, []string{"run.epochs=1"}, []string{"run.epochs=2"}},
		"adapters":   {slices.Concat(constant, []string{"lora.rank=4"}), steps(5), steps(9)},
		"pairs":      {pairs, steps(5), steps(9)},
		"reinforced": {slices.Concat(testshape.RL(), constant), steps(3), append(steps(6), "rl.exact_kl=0")},
		"stale":      {slices.Concat(testshape.RL(), constant, []string{"rl.staleness=2"}), steps(3), steps(6)},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := runTiny(t, filepath.Join(t.TempDir(), "whole"), false, slices.Concat(c.set, c.then)...)
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "run")
			short, err := runTiny(t, out, false, slices.Concat(c.set, c.first)...)
			if err != nil || short == want {
				t.Fatalf("the first part ends with %s (%v)", short, err)
			}
			if got, err := runTiny(t, out, true, slices.Concat(c.set, other, c.then)...); err != nil || got != want {
				t.Errorf("prolonged: %s, want %s (%v)", got, want, err)
			}
		})
	}
}

// What would have given other bits is refused in a line that names each key, before anything is written.
func TestResumeNamesKeys(t *testing.T) {
	supervised, constant := []string{"run.steps=5"}, []string{"optim.schedule=constant"}
	reinforced := append(testshape.RL(), "run.steps=2", "warm_start.steps=1")
	stale := slices.Concat(reinforced, []string{"rl.staleness=2"})
	short := []string{"run.steps=0", "run.epochs=1", "run.packs=64", "optim.schedule=constant", "optim.warmup_steps=1"}
	for _, c := range []struct {
		run, set []string
		want     []string
	}{
		{supervised, []string{"optim.lr=1e-3", "run.packs=2"}, []string{"optim.lr was 0.005, now 0.001; " +
			"run.packs was 4,"}},
		{supervised, []string{"run.seed=9"}, []string{"run.seed was 1, now 9"}},
		{supervised, []string{"data.pack_rows=64"}, []string{"data.pack_rows was 128, now 64"}},
		{supervised, []string{"run.steps=6"}, []string{`optim.schedule = "cosine"`, "run.steps",
			"5 of 5 updates, now of 6"}},
		{supervised, []string{"run.steps=4"}, []string{"run.steps", "5"}},
		{slices.Concat(supervised, constant), []string{"run.steps=4"}, []string{"5 steps are done", "set 4"}},
		{short, []string{"run.epochs=2"}, []string{"the last step before the end of run.epochs had fewer packs"}},
		{reinforced, []string{"rl.group=2"}, []string{"rl.group was 4, now 2"}},
		{reinforced, []string{"rollout.max_tokens=25"}, []string{"rollout.max_tokens was 24, now 25"}},
		{reinforced, []string{"rollout.seed=2"}, []string{"rollout.seed was 1, now 2"}},
		{reinforced, []string{"warm_start.lr=1e-3"}, []string{"warm_start.lr was 0.005, now 0.001"}},
		{reinforced, []string{"run.steps=3"}, []string{`optim.schedule = "cosine"`, "2 of 2 updates, now of 3"}},
		{stale, []string{"rollout.slots=3"}, []string{"rollout.slots was 32, now 3"}},
	} {
		out := filepath.Join(t.TempDir(), "run")
		if _, err := runTiny(t, out, false, c.run...); err != nil {
			t.Fatal(err)
		}
		before := readBytes(t, filepath.Join(out, runlog.ShapeFile))
		_, err := runTiny(t, out, true, slices.Concat(c.run, c.set)...)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: error %v, want one line", c.set, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: error %v, want %q", c.set, err, want)
			}
		}
		if readBytes(t, filepath.Join(out, runlog.ShapeFile)) != before {
			t.Errorf("%v: something was written", c.set)
		}
		if _, err := runTiny(t, out, true, c.run...); err != nil { // it is still what it was
			t.Error(err)
		}
	}
}
