// Package testshape has the shapes that tests of runs, plans and reports can afford. It imports configs.
package testshape

import "lockstep/configs"

// Tiny is a run of 20 steps that a test can afford, on a mixture of experts with every kind of layer.
const Tiny = `
[model]
family = "qwen3_moe"
tokenizer = "countdown"
[model.config]
hidden_size = 32
num_hidden_layers = 2
vocab_size = 480
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 32
norm_topk_prob = true
max_position_embeddings = 128
tie_word_embeddings = true
[data]
task = "countdown"
pack_rows = 128
eval_samples = 4
[data.countdown]
max_number = 25
style = "meet"
train = 300
test = 10
[optim]
lr = 5e-3
warmup_steps = 4
weight_decay = 0.1
[run]
name = "tiny"
steps = 20
packs = 4
save_every = 1
verify_tokens = 0
[rollout]
max_tokens = 8
`

// Parse returns [Tiny] with settings on top, each table.key=value.
func Parse(set []string) (*configs.Shape, error) {
	return configs.Parse("tiny.toml", []byte(Tiny), set)
}

// RL returns the settings that make a run of reinforcement learning of [Tiny].
func RL() []string {
	return []string{
		"rl.objective=grpo", "rl.prompts=4", "rl.group=4", "warm_start.steps=6", "warm_start.lr=5e-3",
		"warm_start.packs=4", "optim.warmup_steps=0", "optim.lr=1e-3", "run.steps=6",
		"rollout.max_tokens=24", "rl.overlong_rows=20", // nothing is solved: the reward is for brevity
	}
}
