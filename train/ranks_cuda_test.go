//go:build cuda

package train

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/kernels/devices"
	"lockstep/train/setup"
	"lockstep/train/testshape"
)

// gpus opens a GPU for each rank of a shape; they share them where the machine has fewer. Of an odd number of ranks
// copy engines bring few rows too.
func gpus(t *testing.T, s *configs.Shape) []kernels.Device {
	t.Helper()
	list, closeAll, err := devices.OpenRanks(setup.Device(s), s.Parallel.Ranks, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closeAll(); err != nil {
			t.Error(err)
		}
	})
	for _, d := range list {
		if s.Parallel.Ranks%2 == 1 {
			d.(interface{ Driver() *driver.Context }).Driver().Few = 0
		}
	}
	return list
}

// Two and three ranks on GPUs come to the files of one rank on the CPU. The test needs a GPU or the emulated ones
// (.ci/emulate/package).
func TestRanksOnGPUs(t *testing.T) {
	rl := append(testshape.RL(), "warm_start.steps=1", "run.steps=1")
	few := []string{"run.steps=2", "optim.warmup_steps=0", "run.save_every=0"}
	for name, set := range map[string][]string{
		"full": append(few, "run.packs=5", "model.config.tie_word_embeddings=true", "run.micro_batch=2",
			"definition.segment=64", "data.eval_samples=0", "model.config.num_key_value_heads=2"),
		"experts": append(few, "run.packs=3", "data.eval_samples=0", "offload.optimizer=true", "offload.ring=0.0001",
			"offload.host_update=0.0005", "offload.breadth=2"),
		"lora": append(few, "lora.rank=4", "lora.target_parameters=mlp.experts.down_proj", "run.recompute=full",
			"data.eval_samples=0", "model.config.num_hidden_layers=5", "offload.activations=true"),
		"qat": append(few, "model.weights=fp8", "definition.acts=mxfp8", "run.packs=3", "data.eval_samples=0",
			"offload.optimizer=true", "offload.ring=0.0001"),
		"products of codes": append(few, "model.weights=fp8", "definition.acts=fp8x128", "run.packs=3",
			"data.eval_samples=0"),
		"weights on the host": append(few, "lora.rank=4", "data.eval_samples=0", "model.config.num_hidden_layers=4",
			"lora.target_parameters=mlp.experts.down_proj", "offload.weights=0.00003"),
		"codes on the host": append(few, "lora.rank=4", "data.eval_samples=0", "model.config.num_hidden_layers=4",
			"model.weights=int4", "model.coded=projections", "offload.weights=0", "offload.activations=true",
			"run.recompute=full"),
		"lora on int4": append(few, "model.weights=int4", "lora.rank=4", "model.coded=projections",
			"lora.target_parameters=mlp.experts.down_proj", "data.eval_samples=0"),
		"rows": tinyDSA(append(few, "model.config.kv_lora_rank=32", "run.packs=3", "run.micro_batch=3", "lora.rank=4",
			"lora.targets=q_b_proj,kv_b_proj", "definition.segment=64", "data.eval_samples=0")...),
		"dapo": append(rl, "rl.objective=dapo", "rl.kl_coef=0.1", "definition.cache=mxfp8"),
	} {
		t.Run(name, func(t *testing.T) {
			shape := func(kind string, ranks int) *configs.Shape {
				s, err := testshape.Parse(append(slices.Clone(set), "model.dtype=bf16", "definition.dot=tc16",
					"definition.exp2=ex2h", "device.kind="+kind, fmt.Sprintf("parallel.ranks=%d", ranks)))
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			s, whole := shape("cpu", 1), filepath.Join(t.TempDir(), "run")
			if err := runDevices(context.Background(), t, s, whole, delayedRanks(t, s, 0)); err != nil {
				t.Fatal(err)
			}
			for _, p := range []configs.Parallel{{Ranks: 2, Weights: "replicated", Experts: 1},
				{Ranks: 3, Weights: "sharded", Experts: 1}, {Ranks: 2, Weights: "replicated", Experts: 2},
				{Ranks: 2, Weights: "replicated", Experts: 2, Context: 2},
				{Ranks: 2, Weights: "replicated", Experts: 1, Stages: 2}} {
				// Ranks that hold experts replicate all other weights.
				if plain := p.Ranks == 2 && p.Experts == 1; name != "full" && ((p.Context > 1) != (name == "rows") ||
					p.Stages > 1 || plain && name != "lora") {
					continue
				}
				s, out := shape("cuda", p.Ranks), filepath.Join(t.TempDir(), "run")
				p.Interleave, p.Context, p.Stages = 1, max(p.Context, 1), max(p.Stages, 1)
				if p.Stages > 1 { // with states in the host's memory
					s.Offload.Optimizer, s.Offload.Ring = true, 0.0001
				}
				if s.Parallel = p; p.Stages > 1 {
					s.Pipeline.Schedule, s.Pipeline.Ahead, s.Pipeline.Blocks = "zero-bubble", 2, []float64{1.5, 0.5}
				}
				if err := runDevices(context.Background(), t, s, out, gpus(t, s)); err != nil {
					t.Fatal(err)
				}
				if got, want := wholeDigest(t, out), wholeDigest(t, whole); got != want {
					t.Errorf("%+v:\n%s\nwant\n%s", p, got, want)
				}
				o := s.Offload
				if n := resultOf(t, out).Memory; n.PlannedDevice != n.Device || n.Device < 1<<16 {
					t.Errorf("%+v: a GPU took %d bytes, planned %d", p, n.Device, n.PlannedDevice)
				} else if n.PlannedPinned != n.Pinned || (n.Pinned > 0) !=
					(o.Optimizer || o.Activations || o.Weights != "all") {
					t.Errorf("%+v: %d bytes of the host are pinned, planned %d", p, n.Pinned, n.PlannedPinned)
				}
			}
		})
	}
}

// Many short sequences in a pack take of a GPU what the plan of long ones says, and come to the CPU's files. The test
// needs a GPU or the emulated one (.ci/emulate/package).
func TestShortSequencesOnGPU(t *testing.T) {
	eachFamily(t, func(t *testing.T, dir string, vocab int) {
		targets, parameters := everyProjection(t, dir)
		lines := filepath.Join(t.TempDir(), "texts.jsonl")
		writeIDs(t, lines, ragged(vocab, 200, 4), 4)
		shape := fmt.Appendf(nil, adapted, dir, "bf16", "tc16", lines, strings.Join(targets, `", "`), parameters)
		run := func(kind string) string {
			s, err := configs.Parse("short.toml", shape, []string{"lora.rank=0", "run.steps=1", "run.packs=1",
				"data.pack_rows=256", "definition.exp2=ex2h", "device.kind=" + kind})
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "run")
			if kind == "cpu" {
				err = runDevices(context.Background(), t, s, out, delayedRanks(t, s, 0))
			} else {
				err = runDevices(context.Background(), t, s, out, gpus(t, s))
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := resultOf(t, out).Memory; n.PlannedDevice != n.Device || n.Device < 1<<16 {
				t.Errorf("%s took %d bytes, planned %d", kind, n.Device, n.PlannedDevice)
			}
			return wholeDigest(t, out)
		}
		if got, want := run("cuda"), run("cpu"); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	})
}
