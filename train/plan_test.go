package train

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// What a run takes of its devices is what the plan said before anything was allocated, to the byte.
func TestPlanIsExact(t *testing.T) {
	rl := testshape.RL()
	shared := []string{"run.steps=2", "optim.warmup_steps=0", "lora.rank=64", "lora.experts=shared"}
	for name, set := range map[string][]string{
		"full":      {"run.steps=2", "optim.warmup_steps=0"},
		"lora":      {"run.steps=2", "optim.warmup_steps=0", "lora.rank=4"},
		"recompute": {"run.steps=2", "optim.warmup_steps=0", "run.recompute=true", "run.micro_batch=2"},
		"halves": tinyDSA("run.steps=2", "optim.warmup_steps=0", "run.recompute=halves", "lora.rank=2",
			"lora.targets=q_b_proj,kv_b_proj,o_proj"),
		"halves away": {"run.steps=2", "optim.warmup_steps=0", "run.recompute=halves", "offload.activations=true",
			"parallel.ranks=2", "parallel.experts=2", "model.dtype=bf16"},
		"sparse": tinyDSA("indexer.stage=sparse", "run.steps=2", "optim.warmup_steps=0"),
		"dense":  tinyDSA("indexer.stage=dense", "run.steps=2", "optim.warmup_steps=0"),
		"pairs":  append(tinyPairs(t), "run.steps=2", "optim.warmup_steps=0"),
		"rl":     append(rl, "run.steps=2", "optim.warmup_steps=0", "warm_start.steps=1"),
		"rl reference": append(rl, "run.steps=2", "optim.warmup_steps=0", "warm_start.steps=0", "rl.kl_coef=0.1",
			"lora.rank=2"),
		"rl proximal": append(rl, "run.steps=2", "optim.warmup_steps=0", "warm_start.steps=0", "rl.proximal=true",
			"rl.minibatches=2"),
		"ranks": {"run.steps=2", "optim.warmup_steps=0", "parallel.ranks=3", "run.packs=7", "model.dtype=bf16"},
		"ranks sharded": {"run.steps=2", "optim.warmup_steps=0", "parallel.ranks=3", "parallel.weights=sharded",
			"model.config.num_hidden_layers=5", "run.micro_batch=2"},
		"ranks sparse": tinyDSA("indexer.stage=sparse", "run.steps=2", "optim.warmup_steps=0", "parallel.ranks=2"),
		"ranks reference": append(rl, "run.steps=2", "optim.warmup_steps=0", "warm_start.steps=1", "rl.kl_coef=0.1",
			"lora.rank=2", "parallel.ranks=8"),
		"breadth": {"run.steps=2", "optim.warmup_steps=0", "parallel.ranks=2", "parallel.experts=2", "run.packs=11",
			"model.dtype=bf16", "run.recompute=full", "offload.optimizer=true", "offload.ring=0.0001",
			"offload.breadth=4"},
		"stages": {"run.steps=2", "optim.warmup_steps=0", "parallel.ranks=2", "parallel.stages=0", "run.packs=7",
			"pipeline.schedule=interleaved", "model.config.num_hidden_layers=5", "model.dtype=bf16",
			"model.config.tie_word_embeddings=true", "offload.optimizer=true", "offload.ring=0.0001"},
		"stages reference": append(rl, "run.steps=2", "optim.warmup_steps=0", "warm_start.steps=1", "rl.kl_coef=0.1",
			"lora.rank=2", "parallel.ranks=2", "parallel.stages=0", "run.recompute=full",
			"pipeline.schedule=zero-bubble"),
		"stages ahead": {"run.steps=2", "optim.warmup_steps=0", "parallel.ranks=2", "parallel.stages=0", "run.packs=13",
			"run.micro_batch=1", "run.recompute=none", "pipeline.schedule=zero-bubble", "pipeline.ahead=3",
			"pipeline.blocks=0.5,1.5"},
		"stages stream": {"run.steps=2", "optim.warmup_steps=0", "parallel.ranks=4", "parallel.stages=0", "run.packs=7",
			"pipeline.schedule=stream", "model.config.num_hidden_layers=5", "model.dtype=bf16"},
		"shared": append(shared, "lora.targets=gate_proj,up_proj,down_proj"),
		"ranks shared": append(shared, "lora.targets=gate_proj,up_proj,down_proj", "parallel.ranks=2",
			"parallel.experts=2"),
		"mismatch": append(rl, "run.steps=2", "optim.warmup_steps=0", "warm_start.steps=0",
			"rollout.allow_mismatch=true",
			"rollout.numerics.combine=bf16", "rollout.numerics.weights=fp8"),
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "run")
			if _, err := runTiny(t, out, false, set...); err != nil {
				t.Fatal(err)
			}
			res := resultOf(t, out)
			if n := res.Memory; n.PlannedDevice != n.Device || n.Device < 1<<16 {
				t.Errorf("took %d bytes of its devices, planned %d", n.Device, n.PlannedDevice)
			}
			if n := res.Memory; n.Peak < int64(n.Device)/2 || n.Planned <= n.PlannedDevice {
				t.Errorf("resident at the peak %d bytes, planned %d with %d of devices", n.Peak, n.Planned,
					n.PlannedDevice)
			}
		})
	}
}

// resultOf is what a run says of itself at the end.
func resultOf(t *testing.T, out string) (res runlog.Result) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(out, runlog.ResultFile))
	if err == nil {
		err = json.Unmarshal(text, &res)
	}
	if err != nil {
		t.Fatal(err)
	}
	return res
}
