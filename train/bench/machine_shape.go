package bench

import (
	"fmt"

	"lockstep/kernels/devices"
)

// MachineShape is the shape that [Machine] trains where none is given, as TOML: a mixture of experts of a size that the
// device computes at its usual rates.
func MachineShape(device string) string {
	hidden, layers, experts, expert, rows, vocab := 256, 4, 16, 128, 512, 4096
	if device == devices.CUDA {
		hidden, layers, experts, expert, rows, vocab = 1024, 12, 64, 512, 4096, 32000
	}
	return fmt.Sprintf(`
[model]
family = "qwen3_moe"
tokenizer = "bytes"
[model.config]
hidden_size = %d
num_hidden_layers = %d
num_experts = %d
moe_intermediate_size = %d
max_position_embeddings = %d
vocab_size = %d
num_attention_heads = %d
num_key_value_heads = %d
head_dim = 64
intermediate_size = 2048
num_experts_per_tok = 8
norm_topk_prob = true
tie_word_embeddings = true
[data]
task = "countdown"
pack_rows = %d
eval_samples = 0
[run]
name = "mixture"
steps = 1
packs = 4
micro_batch = 4
verify_tokens = 0
recompute = "none"
`, hidden, layers, experts, expert, rows, vocab, hidden/64, hidden/256, rows)
}
