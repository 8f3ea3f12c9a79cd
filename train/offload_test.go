package train

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels/cpu"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// offloaded puts the optimizer's state into the host's memory, behind a ring of a few pieces.
var offloaded = []string{"offload.optimizer=true", "offload.ring=0.0001"}

// Where the optimizer's state lies changes no bit: on any number of ranks, however many micro-batches pass a block
// together, whenever copies are carried out, also where a run is stopped after each step and goes on with its state
// elsewhere.
func TestOffloadOptimizer(t *testing.T) {
	few := []string{"run.steps=3", "optim.warmup_steps=0", "data.eval_samples=0", "run.save_every=0"}
	for name, set := range map[string][]string{
		"full": append(few, "model.dtype=bf16", "definition.dot=tc16", "model.config.tie_word_embeddings=true"),
		"fp32": append(few, "run.packs=5"),
		"lora": append(few, "lora.rank=4", "lora.target_parameters=mlp.experts.down_proj", "run.packs=2"),
		"qat":  append(few, "model.weights=int4", "run.packs=3", "model.dtype=bf16"),
		"indexer": tinyDSA("indexer.stage=sparse", "run.steps=3", "optim.warmup_steps=0", "model.dtype=bf16",
			"run.save_every=0"),
		"rl": append(testshape.RL(), "warm_start.steps=1", "run.steps=2", "model.dtype=bf16", "rl.minibatches=2",
			"run.eval_every=0", "run.save_every=0"),
	} {
		t.Run(name, func(t *testing.T) {
			shape := func(more ...string) *configs.Shape {
				s, err := testshape.Parse(slices.Concat(set, more))
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			run := func(seed uint64, more ...string) string { return runDelayed(t, shape(more...), seed) }
			want := run(0)
			first := "0.0001"
			if name == "full" {
				first = "auto" // which measures the host's cores
			}
			for i, mesh := range [][]string{{"parallel.ranks=1"}, {"parallel.ranks=2", "parallel.weights=sharded"},
				{"parallel.ranks=3"}, {"parallel.ranks=2", "parallel.experts=2", "parallel.interleave=2",
					"run.micro_batch=2"}, {"parallel.ranks=4", "parallel.experts=4"}} {
				mesh = append(mesh, "offload.host_update="+[]string{first, "0.0001", "0.00002", "0", "1"}[i],
					fmt.Sprintf("offload.breadth=%d", []int{3, 2, 1, 2, 2}[i]))
				if got := run(uint64(i+1), append(mesh, offloaded...)...); got != want {
					t.Errorf("%v:\n%s\nwant\n%s", mesh, got, want)
				}
			}
			if got := stoppedOften(t, shape, 3); name != "rl" && got != want {
				t.Errorf("stopped after each step:\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// runDelayed is what a run leaves on CPU ranks whose copies are carried out at moments drawn by a seed; 0: at once.
func runDelayed(t *testing.T, s *configs.Shape, seed uint64) string {
	t.Helper()
	out, list := filepath.Join(t.TempDir(), "run"), delayedRanks(t, s, seed)
	if err := runDevices(context.Background(), t, s, out, list); err != nil {
		t.Fatal(err)
	}
	checkPinned(t, s, list, out)
	return wholeDigest(t, out)
}

// Where inputs of blocks lie between forward and backward changes no bit: in supervised training, with preferences,
// reinforcement learning and indexers that learn, in micro-batches, on any mesh and in two lanes, also with the
// optimizer's state on the host, whenever copies are carried out.
func TestOffloadActivations(t *testing.T) {
	few := []string{"run.steps=2", "optim.warmup_steps=0", "data.eval_samples=0", "run.packs=5",
		"model.config.num_hidden_layers=6", "definition.segment=64", "model.dtype=bf16"}
	deep := "model.config.indexer_types=" + `["full", "shared", "shared", "full", "shared", "full"]`
	for name, set := range map[string][]string{
		"full": few,
		"lora": append(few, "lora.rank=4", "lora.dropout=0.25", "lora.targets=q_proj,o_proj"),
		"dpo": append(tinyPairs(t), "run.steps=2", "optim.warmup_steps=0", "run.packs=5",
			"model.config.num_hidden_layers=6"),
		"indexers alone": tinyDSA("indexer.stage=dense", "run.steps=2", "optim.warmup_steps=0",
			"model.config.num_hidden_layers=6", deep),
		"rl": append(testshape.RL(), "warm_start.steps=1", "run.steps=1", "model.config.num_hidden_layers=5",
			"rl.minibatches=2"),
	} {
		t.Run(name, func(t *testing.T) {
			run := func(seed uint64, more ...string) string {
				s, err := testshape.Parse(slices.Concat(set, more))
				if err != nil {
					t.Fatal(err)
				}
				return runDelayed(t, s, seed)
			}
			want := run(0)
			meshes := [][]string{{"parallel.ranks=1", "run.micro_batch=2"},
				{"parallel.ranks=3", "parallel.weights=sharded"}, {"parallel.ranks=4"}}
			if name != "indexers alone" && name != "dpo" {
				meshes = append(meshes, []string{"parallel.ranks=2", "parallel.experts=2", "parallel.interleave=2",
					"run.micro_batch=2", "offload.optimizer=true", "offload.ring=0.0001"},
					[]string{"parallel.ranks=4", "parallel.experts=4", "parallel.weights=sharded",
						"parallel.interleave=2", "run.micro_batch=2"})
			}
			for i, mesh := range meshes {
				mesh = append(mesh, "offload.activations=true", "run.recompute="+[]string{"full", "halves"}[i%2])
				if got := run(uint64(i+1), mesh...); got != want {
					t.Errorf("%v:\n%s\nwant\n%s", mesh, got, want)
				}
			}
		})
	}
}

// Where frozen weights of blocks lie changes no bit: as numbers or in codes, all of them or some, on any mesh and in
// two lanes, with adapters on experts, with all else on the host too, whenever copies are carried out. They come once
// for the forward and once for the backward of all micro-batches of a step.
func TestOffloadWeights(t *testing.T) {
	few := []string{"run.steps=2", "optim.warmup_steps=0", "data.eval_samples=0", "run.packs=5", "lora.rank=4",
		"model.config.num_hidden_layers=5", "definition.segment=64", "model.dtype=bf16",
		"model.config.num_key_value_heads=2"}
	for name, set := range map[string][]string{
		"numbers": append(few, "lora.target_parameters=mlp.experts.down_proj"),
		"int4":    append(few, "model.weights=int4", "model.coded=projections"),
		"mxfp8":   append(few, "model.weights=mxfp8", "definition.acts=mxfp8", "model.dtype=bf16"),
		"dpo": append(tinyPairs(t), "run.steps=2", "optim.warmup_steps=0", "run.packs=5",
			"model.config.num_hidden_layers=6", "lora.rank=4"),
		"glm5": tinyDSA("run.steps=2", "optim.warmup_steps=0", "model.config.num_hidden_layers=6", "lora.rank=4",
			"data.eval_samples=0", "lora.targets=q_b_proj,o_proj",
			"model.config.indexer_types="+`["full", "shared", "shared", "full", "shared", "full"]`),
	} {
		t.Run(name, func(t *testing.T) {
			run := func(seed uint64, more ...string) string {
				s, err := testshape.Parse(slices.Concat(set, more))
				if err != nil {
					t.Fatal(err)
				}
				return runDelayed(t, s, seed)
			}
			want := run(0)
			meshes := [][]string{{"parallel.ranks=1", "run.micro_batch=2", "offload.weights=0"},
				{"parallel.ranks=2", "parallel.weights=sharded", "offload.weights=0.000015"},
				{"parallel.ranks=2", "offload.weights=auto", "offload.optimizer=true", "offload.ring=0.0001",
					"offload.activations=true", "run.recompute=halves"}}
			if name != "dpo" && name != "glm5" {
				meshes = append(meshes, []string{"parallel.ranks=4", "parallel.experts=4", "offload.weights=0.000015"},
					[]string{"parallel.ranks=2", "parallel.experts=2", "parallel.interleave=2", "run.micro_batch=2",
						"offload.weights=0"},
					[]string{"parallel.ranks=2", "parallel.context=2", "offload.weights=0"})
			}
			for i, mesh := range meshes {
				if got := run(uint64(i+1), mesh...); got != want {
					t.Errorf("%v:\n%s\nwant\n%s", mesh, got, want)
				}
			}
		})
	}
}

// Weights that are trained do not leave a card, nor do those that each token of an answer would wait for.
func TestOffloadWeightsRefused(t *testing.T) {
	if _, err := testshape.Parse([]string{"offload.weights=0"}); err == nil ||
		!strings.Contains(err.Error(), "weights that are trained do not leave the card") {
		t.Errorf("full fine-tuning: %v", err)
	}
	const waits = "tokens a second for a sequence"
	for _, c := range []struct {
		set  []string
		want string
	}{{testshape.RL(), waits}, {[]string{"data.eval_samples=4"}, waits},
		{[]string{"data.eval_samples=0", "run.verify_tokens=64"}, "set run.verify_tokens = 0"},
		{[]string{"data.eval_samples=0", "lora.modules_to_save=post_attention_layernorm"}, "is on the host by"}} {
		s, err := testshape.Parse(append(slices.Clone(c.set), "lora.rank=4", "offload.weights=0"))
		if err != nil {
			t.Fatal(err)
		}
		err = runDevices(context.Background(), t, s, filepath.Join(t.TempDir(), "run"), delayedRanks(t, s, 0))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v", c.set, err)
		}
	}
}

// checkPinned compares the host memory that devices have pinned with the plan.
func checkPinned(t *testing.T, s *configs.Shape, list []*cpu.Device, out string) {
	t.Helper()
	pinned := 0
	for _, d := range list {
		pinned += d.Counts().Pinned
	}
	if n := resultOf(t, out).Memory; n.PlannedPinned != pinned || n.Pinned != pinned || n.Device != n.PlannedDevice {
		t.Errorf("%d bytes of the host and %d of devices are taken, planned %d and %d", pinned, n.Device,
			n.PlannedPinned, n.PlannedDevice)
	}
	records, err := runlog.ReadMetrics(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		passes := 2 * pinned * s.Parallel.Ranks
		if r.Step == 1 && s.Data.Preferences != "" {
			passes *= 4 // the reference of all pairs, as many packs at a time as a step has
		}
		switch weights := s.Offload.Weights != "all"; {
		case weights && s.Offload.Optimizer: // what is pinned is not weights alone
		case weights != (r.FromHost > 0) || int(r.FromHost) > passes:
			t.Errorf("step %d: %d bytes of weights from the host, %d are in two passes", r.Step, r.FromHost, passes)
		}
	}
	if (pinned > 0) != (s.Offload.Optimizer || s.Offload.Activations || s.Offload.Weights != "all") {
		t.Errorf("%d bytes of the host are pinned", pinned)
	}
}

// stoppedOften is what a run of so many steps leaves that is stopped after each, with its state in the host's memory
// and on the device alternately.
func stoppedOften(t *testing.T, shape func(set ...string) *configs.Shape, steps int) string {
	t.Helper()
	stopped, stop := context.WithCancel(context.Background())
	stop()
	out := filepath.Join(t.TempDir(), "run")
	for i := range steps {
		set := []string{fmt.Sprintf("parallel.ranks=%d", 1+i%2)}
		if i%2 == 0 {
			set = append(set, offloaded...)
		}
		s, ctx := shape(set...), stopped
		if i == steps-1 {
			ctx = context.Background()
		}
		err := runDevices(ctx, t, s, out, delayedRanks(t, s, uint64(i+1)))
		if (err != nil || i < steps-1) && !errors.Is(err, ErrInterrupted) {
			t.Fatal(err)
		}
	}
	return wholeDigest(t, out)
}
