//go:build cuda

package bench

import (
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"

	"lockstep/configs"
	"lockstep/train/testshape"
)

// Two GPUs pass states through and leave some to the host, all or none.
func TestBenchUpdateOnGPUs(t *testing.T) {
	if err := Update(context.Background(), UpdateOptions{Device: "cuda", Ranks: 2, Parameters: 1,
		Host: []int{0, 100}, Each: time.Microsecond, Out: io.Discard}); err != nil {
		t.Fatal(err)
	}
}

// What is measured of two GPUs is a machine file, with the rates of every kind of operation and of every link. The test
// needs GPUs or the emulated ones (.ci/emulate/package).
func TestMachineOnGPUs(t *testing.T) {
	s, err := testshape.Parse([]string{"model.config.max_position_embeddings=512", "data.eval_samples=0", "run.packs=1",
		"run.micro_batch=1", "model.dtype=bf16", "definition.dot=tc16", "definition.exp2=ex2h", "device.kind=cuda",
		"data.pack_rows=64"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "this.toml")
	err = Machine(context.Background(), MachineOptions{Device: "cuda", Cards: 2, Shape: s, Each: time.Microsecond,
		Steps: 1, Out: path, Log: io.Discard, sizes: &machineSizes{copied: 1 << 20, dense: 256, experts: 2, rows: 20,
			cols: 128, depth: 128, heads: 2, length: 128, latent: 64, recurrent: 2, chunked: 128}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := configs.LoadMachine(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, rate := range map[string]float64{"memory": m.Rates.Memory, "dense": m.Rates.Dense,
		"to card": m.Host.ToCard, "from card": m.Host.FromCard, "both": m.Host.Both, "link": m.Links.EachWay,
		"rows": m.Links.Rows, "scores": m.Rates.Scores, "slowest": m.Share.Slowest} {
		if rate <= 0 {
			t.Errorf("%s: rate %g", name, rate)
		}
	}
	if m.Cards != 2 || !m.Measured {
		t.Errorf("%+v", m)
	}
}

// What [Rollout] says of a GPU's memory is what its plan says. The test needs a GPU or the emulated one
// (.ci/emulate/package).
func TestBenchRolloutMemoryOnGPU(t *testing.T) {
	for _, cache := range []string{"none", "mxfp8"} {
		generation(t, "device.kind=cuda", "definition.dot=tc16", "definition.exp2=ex2h", "definition.cache="+cache)
	}
}
