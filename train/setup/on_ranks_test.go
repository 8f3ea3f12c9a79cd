package setup

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/testshape"
)

// What only runs a shape's model takes no memory for training, and the proof holds without.
func TestOnShape(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tiny.toml")
	if err := os.WriteFile(path, []byte(testshape.Tiny), 0o600); err != nil {
		t.Fatal(err)
	}
	err := OnShape(path, nil, kernels.BreakNone, func(s serve.Ranks) error {
		if n := len(s.Model.Trained()); n > 0 {
			t.Errorf("%d parameters have gradients", n)
		}
		rep, err := serve.Verify(context.Background(), s, serve.VerifyOptions{Tokens: 200})
		if err != nil {
			return err
		}
		return rep.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Numbers of ranks that are 0 are all there are; the CPU is one device.
func TestCountRanks(t *testing.T) {
	c := devices.Config{Kind: devices.CPU, Threads: 1, Definition: devices.Definition(devices.CPU)}
	for _, x := range []struct{ ranks, experts, wantRanks, wantExperts int }{{0, 0, 1, 1}, {3, 0, 3, 3}, {3, 1, 3, 1},
		{0, 1, 1, 1}} {
		p := configs.Parallel{Ranks: x.ranks, Experts: x.experts}
		err := OnRanks(c, &p, func(w *parallel.World, r *parallel.Rank) error {
			if w.Size() != x.wantRanks || r.Experts.Size != x.wantExperts || p.Ranks != x.wantRanks {
				t.Errorf("%+v: %d ranks, experts over %d", x, w.Size(), r.Experts.Size)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
