package train

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/configs"
)

// smallGRPO is the run of a billion parameters that cards take a hundred steps of (.ci/card grpo), in small: latent
// attention with indexers, a dense layer before mixtures.
var smallGRPO = []string{
	"device.kind=cpu", "model.config.hidden_size=64", "model.config.num_hidden_layers=3",
	"model.config.indexer_types=['full', 'full', 'shared']", "model.config.num_attention_heads=2",
	"model.config.num_key_value_heads=2", "model.config.q_lora_rank=32", "model.config.kv_lora_rank=32",
	"model.config.qk_nope_head_dim=16", "model.config.qk_rope_head_dim=16", "model.config.v_head_dim=16",
	"model.config.index_head_dim=32", "model.config.index_n_heads=2", "model.config.intermediate_size=64",
	"model.config.n_routed_experts=8", "model.config.moe_intermediate_size=32", "model.dtype=bf16",
	"data.pack_rows=64", "data.eval_samples=0", "data.countdown.train=300", "data.countdown.test=10",
	"warm_start.steps=20", "warm_start.warmup_steps=4", "warm_start.lr=5e-3", "optim.lr=1e-3", "rl.prompts=6",
	"rl.group=4", "rollout.slots=16", "rollout.max_tokens=16", "run.steps=20", "run.eval_every=0", "run.save_every=10",
	"run.micro_batch=1", "run.verify_tokens=0", "rl.overlong_rows=14", // hardly any is solved: a reward for brevity
}

// Twenty steps of GRPO on eight ranks come to the files of one: weights, optimizer states, answers.
func TestGRPOOnRanks(t *testing.T) {
	run := func(seed uint64, set ...string) (string, string) {
		s, err := configs.Load("../configs/validation/countdown-1b.toml", append(smallGRPO, set...))
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "run")
		if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, seed)); err != nil {
			t.Fatal(err)
		}
		return wholeDigest(t, out), episodes(t, out)
	}
	want, answers := run(0)
	all := strings.Count(answers, "\n")
	if flat := strings.Count(answers, `"advantage":0,`); all != 20*24 || flat > all/2 {
		t.Fatalf("%d of %d answers have no advantage: the run learns little", flat, all)
	}
	for seed, mesh := range [][]string{nil, {"parallel.experts=8", "parallel.weights=sharded"}} {
		if got, _ := run(uint64(seed), append(mesh, "parallel.ranks=8")...); got != want {
			t.Errorf("8 ranks, %v:\n%s\nwant\n%s", mesh, got, want)
		}
	}
	if got, _ := run(0, "run.seed=2"); got == want {
		t.Error("another seed gives the same files: the test cannot fail")
	}
}
