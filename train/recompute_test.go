package train

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/train/bench"
	"lockstep/train/plan"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// large is a shape whose activations are most of what it takes.
func large(t *testing.T, set ...string) *configs.Shape {
	t.Helper()
	s, err := testshape.Parse(append([]string{"run.steps=2", "optim.warmup_steps=0", "run.packs=8", "run.micro_batch=8",
		"data.pack_rows=1024", "model.config.num_hidden_layers=4"}, set...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// onLimited runs body on a device that says it has so many bytes left.
func onLimited(t *testing.T, left int, body func(d *limited, w *parallel.World, r *parallel.Rank) error) {
	t.Helper()
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	d := &limited{Device: dev, left: left}
	w, err := parallel.Open([]kernels.Device{d}, parallel.Mesh{Experts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Lead(func(r *parallel.Rank) error { return body(d, w, r) }); err != nil {
		t.Fatal(err)
	}
}

// takes is what a shape's plan says of its device where it has no bound.
func takes(t *testing.T, s *configs.Shape) (n plan.Memory) {
	t.Helper()
	onLimited(t, 0, func(d *limited, w *parallel.World, r *parallel.Rank) error {
		p, err := plan.New(d, s)
		if err == nil {
			n, err = p.Choose(0)
		}
		return err
	})
	return n
}

// taken is the memory of this process that a run of a shape may take over.
func taken(t *testing.T, s *configs.Shape) (n int) {
	t.Helper()
	onLimited(t, 1, func(d *limited, w *parallel.World, r *parallel.Rank) error {
		n = plan.MemoryFor(d, s) - 1
		return nil
	})
	return n
}

// With run.recompute = "auto" a run takes no more than its device has left, computes again what there is no room for,
// and ends with the bits of one that keeps everything. It may stop and go on where there is other memory.
func TestRecomputeAuto(t *testing.T) {
	none, full := large(t, "run.recompute=none"), large(t, "run.recompute=full")
	want := runOn(t, none, filepath.Join(t.TempDir(), "run"), 0, 0)
	scarce := (takes(t, none).Total()+takes(t, full).Total())/2*32/31 - taken(t, none) // a 32nd is left free
	// a run that is stopped after a step goes on with the next
	for _, left := range [][]int{{scarce}, {scarce, 0}, {0, scarce}} {
		out := filepath.Join(t.TempDir(), "run")
		var got finished
		for i, bytes := range left {
			got = runOn(t, large(t), out, bytes, len(left)-1-i)
			if all := got.plan.Keep == nil; all != (bytes == 0) ||
				strings.Contains(got.log, "recompute: auto: everything kept") != all {
				t.Errorf("%d bytes left: %v kept, log %q", bytes, got.plan.Keep, got.log)
			}
			if bytes > 0 && !slices.ContainsFunc(got.plan.Keep, func(s model.Save) bool { return s != 0 }) {
				t.Errorf("%d bytes left, and nothing is kept", bytes)
			}
			if got.bytes != got.takes.Device() || bytes > 0 && got.takes.Total() > bytes+taken(t, none) {
				t.Errorf("%d bytes left: took %d, planned %v", bytes, got.bytes, got.takes)
			}
		}
		if got.digest != want.digest {
			t.Errorf("%v bytes left: %s, want %s", left, got.digest, want.digest)
		}
	}
	if keep := want.plan.Keep; keep != nil {
		t.Errorf("recompute = none: %v", keep)
	}
}

// finished is what is left of a run.
type finished struct {
	plan   *plan.Plan
	learns *trainer.Trainer // in the run's last stage
	takes  plan.Memory
	bytes  int // that the device gave out
	log    string
	digest string // of the last checkpoint
}

// runOn trains in a folder on a device with so many bytes left, 0: no bound, and stops after a step if more runs
// follow.
func runOn(t *testing.T, s *configs.Shape, out string, left, more int) (f finished) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if more > 0 {
		stop()
	}
	onLimited(t, left, func(d *limited, w *parallel.World, r *parallel.Rank) error {
		j := &job{ctx: ctx, shape: s, options: Options{Out: out, Resume: runlog.HasRun(out), Log: log}, folder: out,
			world: w}
		err := errors.Join(j.execute(r), j.close())
		if more > 0 && errors.Is(err, ErrInterrupted) {
			err = nil
		}
		f.plan, f.learns, f.takes, f.bytes = j.plan, j.trainer, j.memory, d.Counts().Bytes
		if j.learner != nil {
			f.learns = j.learner.trainer
		}
		return err
	})
	text, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	f.log, f.digest = string(text), checkpointDigest(t, out)
	return f
}

// Reinforcement learning computes again what the plan says.
func TestRecomputeReinforced(t *testing.T) {
	s, err := testshape.Parse(append(testshape.RL(), "run.steps=1", "optim.warmup_steps=0", "warm_start.steps=0",
		"run.recompute=full"))
	if err != nil {
		t.Fatal(err)
	}
	got := runOn(t, s, filepath.Join(t.TempDir(), "run"), 0, 0)
	if keep := got.learns.Keep; keep == nil || !slices.Equal(keep, got.plan.Keep) {
		t.Errorf("blocks keep %v, planned %v", keep, got.plan.Keep)
	}
}

// A shape of a run that was made when recompute was true or false means the same.
func TestRecomputeBools(t *testing.T) {
	for set, want := range map[string]string{"run.recompute=true": "full", "run.recompute=false": "none",
		"run.recompute=auto": "auto"} {
		if got := large(t, set).Run.Recompute; got != want {
			t.Errorf("%s: %q", set, got)
		}
	}
	if got := large(t).Run.Recompute; got != "auto" {
		t.Errorf("by default %q", got)
	}
}

func TestBenchRecompute(t *testing.T) {
	var out bytes.Buffer
	if err := bench.Recompute(context.Background(), large(t, "data.pack_rows=64"), bench.Options{Steps: 1, Each: 1,
		Out: &out}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gradients equal on every bit", "auto: everything kept, nothing computed again",
		"full: nothing of 4 blocks kept", "none: everything kept"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, &out)
		}
	}
}
