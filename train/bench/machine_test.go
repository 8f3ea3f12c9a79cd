package bench

import (
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"

	"lockstep/configs"
	"lockstep/train/plan"
	"lockstep/train/testshape"
)

// What is measured of this machine is a machine file, by which a plan makes a step about as long as it is.
func TestMachine(t *testing.T) {
	s, err := testshape.Parse([]string{"model.config.max_position_embeddings=512", "data.eval_samples=0",
		"run.packs=4", "run.micro_batch=4", "run.recompute=none"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "this.toml")
	err = Machine(context.Background(), MachineOptions{Device: "cpu", Cards: 1, Shape: s, Each: time.Millisecond,
		Steps: 2, Out: path, Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	m, err := configs.LoadMachine(path)
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "cpu" || !m.Measured || m.Rates.Dense > 100 || m.Rates.Memory < 0.1 || m.Rates.Memory > 1e4 {
		t.Errorf("%+v", m)
	}
	step, err := plan.StepOn(m, s, 0, nil)
	if err != nil || !(step.Rate() > 10 && step.Rate() < 1e8) {
		t.Errorf("%g tokens a second by plan, %v", step.Rate(), err)
	}
}
