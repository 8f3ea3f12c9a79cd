package model_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// What was read is written: the same tensors, in name, type, shape and every byte; those that a family leaves alone
// too.
func TestSaveIsLoad(t *testing.T) {
	for _, family := range goldens {
		t.Run(family, func(t *testing.T) {
			dir, saved := filepath.Join("testdata", family), t.TempDir()
			onRank(t, func(r *parallel.Rank) error {
				m, err := model.LoadFolder(r.Dev, dir, "", model.Options{})
				if err != nil {
					return err
				}
				return m.SaveFolder(saved, dir)
			})
			want, got := openCheckpoint(t, dir), openCheckpoint(t, saved)
			if len(got.Names()) != len(want.Names()) {
				t.Errorf("%d tensors, want %d", len(got.Names()), len(want.Names()))
			}
			for _, name := range want.Names() {
				a, _ := want.Tensor(name)
				b, ok := got.Tensor(name)
				if !ok || a.DType != b.DType || !bytes.Equal(a.Data, b.Data) || len(a.Shape) != len(b.Shape) {
					t.Errorf("%s is not what was read", name)
				}
			}
		})
	}
}

func openCheckpoint(t *testing.T, dir string) *safetensors.Checkpoint {
	t.Helper()
	c, err := safetensors.OpenCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The balance of a router is fp32 in a bf16 model, and no step moves it.
func TestBalanceIsNoWeight(t *testing.T) {
	for _, family := range []string{"glm4_moe", "minimax_m2"} {
		dir := filepath.Join("testdata", family)
		g, c := openGolden(t, dir), openCheckpoint(t, dir)
		onRank(t, func(r *parallel.Rank) error {
			m, err := model.LoadFolder(r.Dev, dir, "", model.Options{DType: kernels.BF16})
			if err != nil {
				return err
			}
			adamW(r, m, 2, g.ids("ids.0"))
			seen := 0
			for _, out := range m.Tensors() {
				if !strings.HasSuffix(out.Name, "e_score_correction_bias") {
					continue
				}
				var raw bytes.Buffer
				if err := out.Write(&raw); err != nil {
					return err
				}
				seen++
				if want, _ := c.Tensor(out.Name); out.DType != "F32" || !bytes.Equal(raw.Bytes(), want.Data) {
					t.Errorf("%s: %s is written as %s and has changed", family, out.Name, out.DType)
				}
			}
			if seen == 0 {
				t.Errorf("%s: no balance is written", family)
			}
			return nil
		})
	}
}

// Layers that predict further tokens are passed over by the families that have them, and are refused elsewhere.
func TestNextTokenLayers(t *testing.T) {
	for family, extra := range map[string]string{"glm4_moe": "model.layers.3.eh_proj.weight",
		"llama3": "model.layers.2.eh_proj.weight"} {
		dir, wide := filepath.Join("testdata", family), t.TempDir()
		onRank(t, func(r *parallel.Rank) error {
			m, err := model.LoadFolder(r.Dev, dir, "", model.Options{})
			if err != nil {
				return err
			}
			tensors := append(m.Tensors(), safetensors.OutTensor{Name: extra, DType: "F32", Shape: []int{1},
				Write: func(w io.Writer) error {
					_, err := w.Write(make([]byte, 4))
					return err
				}})
			return safetensors.Write(filepath.Join(wide, "model.safetensors"), tensors, nil)
		})
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err == nil {
			err = os.WriteFile(filepath.Join(wide, "config.json"), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		onRank(t, func(r *parallel.Rank) error {
			if _, err := model.LoadFolder(r.Dev, wide, "", model.Options{}); (err == nil) != (family == "glm4_moe") {
				t.Errorf("%s with %s: %v", family, extra, err)
			}
			return nil
		})
	}
}

// A config.json that a family does not mean is refused in one line that names the field.
func TestConfigRefuses(t *testing.T) {
	for _, c := range []struct {
		family, field string
		value         any
	}{
		{"llama3", "hidden_size", 0}, {"llama3", "num_key_value_heads", 3}, {"llama3", "hidden_act", "gelu"},
		{"qwen3", "rms_norm_eps", -1e-6}, {"nemotron_h", "layer_norm_epsilon", -1e-6},
		{"qwen3", "rope_parameters", map[string]any{"rope_theta": -1e4}},
		{"llama3", "head_dim", 15}, {"llama3", "intermediate_size", -1},
		{"llama3", "rope_parameters", map[string]any{"rope_type": "longrope"}}, {"llama3", "vocab_size", "many"},
		{"glm4_moe", "n_group", 3}, {"glm4_moe", "topk_group", 2}, {"glm4_moe", "num_experts_per_tok", 9},
		{"glm4_moe", "routed_scaling_factor", -1},
		{"kimi_k2", "kv_lora_rank", 0}, {"kimi_k2", "q_lora_rank", -1}, {"kimi_k2", "qk_rope_head_dim", 7},
		{"kimi_k2", "v_head_dim", 0}, {"kimi_k2", "attention_bias", true},
		{"kimi_k2", "quantization_config", map[string]any{"quant_method": "compressed-tensors"}},
		{"kimi_k2", "n_shared_experts", 0}, {"kimi_k25_wrapped", "text_config", nil},
		{"kimi_k25_wrapped", "text_config", map[string]any{"hidden_size": 0}}, {"glm4_moe_lite", "mlp_layer_types",
			[]string{"dense"}},
		{"glm4_moe_lite", "mlp_layer_types", []string{"dense", "sparse", "tiny"}},
		{"glm5", "index_topk", 0}, {"glm5", "q_lora_rank", nil}, {"glm5", "index_head_dim", 4},
		{"glm5", "indexer_types", []string{"full"}},
		{"glm5", "indexer_types", []string{"shared", "full", "full", "full"}},
		{"glm5", "indexer_types", []string{"full", "full", "full", "half"}}, {"glm5", "kv_lora_rank", -1},
		{"minimax_m2", "qk_norm_type", "per_head"}, {"minimax_m2", "scoring_func", "softmax"},
		{"minimax_m2", "attn_type_list", []int{1, 0, 1}},
		{"minimax_m2", "num_experts_per_tok", 9}, {"minimax_m2", "shared_intermediate_size", 8},
		{"gpt_oss", "layer_types", []string{"full_attention"}}, {"gpt_oss", "sliding_window", 0},
		{"gpt_oss", "swiglu_limit", 3},
		{"qwen3_5", "layer_types", []string{"full_attention"}}, {"qwen3_5", "layer_types", []string{"linear_attention",
			"full_attention", "linear_attention", "mamba"}},
		{"qwen3_5", "linear_num_value_heads", 3}, {"qwen3_5", "linear_key_head_dim", 0},
		{"qwen3_5", "linear_conv_kernel_dim", 1}, {"qwen3_5", "attention_bias", true},
		{"qwen3_5", "intermediate_size", 0}, {"qwen3_5_moe", "num_experts_per_tok", 9},
		{"qwen3_5_moe", "shared_expert_intermediate_size", 0},
		{"qwen3_5_moe_wrapped", "text_config", nil}, {"qwen3_5_moe_wrapped", "text_config",
			map[string]any{"hidden_size": 0}}, {"qwen3_next", "decoder_sparse_step", 0},
		{"nemotron_h", "layers_block_type", []string{"rnn"}}, {"nemotron_h", "n_groups", 3},
		{"nemotron_h", "ssm_state_size", 0}, {"nemotron_h", "conv_kernel", 0},
		{"nemotron_h", "time_step_limit", []int{1}}, {"nemotron_h", "time_step_limit", []any{1, "x"}},
		{"nemotron_h", "time_step_min", 0}, {"nemotron_h", "mlp_hidden_act", "silu"},
		{"nemotron_h", "use_bias", true}, {"nemotron_h", "tie_word_embeddings", true}, {"nemotron_h", "block_configs",
			[]int{1}}, {"nemotron_h", "sliding_window", 8},
		{"nemotron_h", "n_group", 3}, {"nemotron_h_latent", "topk_group", 5}, {"nemotron_h", "routed_scaling_factor",
			0}, {"nemotron_h", "moe_latent_size", -1},
		{"qwen3_moe", "num_experts_per_tok", 0}, {"qwen3_moe", "moe_intermediate_size", 0},
		{"qwen3", "intermediate_size", 0},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", c.family, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := model.Describe(text, kernels.F32); err != nil {
			t.Errorf("%s: %v", c.family, err)
		}
		if _, err := model.Describe(withField(t, text, c.field, c.value), kernels.F32); err == nil ||
			strings.Contains(err.Error(), "\n") ||
			!strings.Contains(err.Error(), strings.TrimPrefix(c.field, "rope_parameters")) {
			t.Errorf("%s with %s = %v: %v", c.family, c.field, c.value, err)
		}
	}
}

func withField(t testing.TB, text []byte, name string, value any) []byte {
	t.Helper()
	var fields map[string]any
	err := json.Unmarshal(text, &fields)
	if err == nil {
		fields[name] = value
		text, err = json.Marshal(fields)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// MiniMax's releases say rotary_dim alone; without either all columns are rotary.
func TestRotaryDim(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "minimax_m2", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	text = withField(t, text, "rope_parameters", nil)
	for value, pairs := range map[any]int{8: 4, nil: 8} {
		m, err := model.Describe(withField(t, text, "rotary_dim", value), kernels.F32)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Blocks[0][0].Layer.(*model.Attention).Rope; got.Cos.Cols != pairs || got.HeadDim != 16 {
			t.Errorf("rotary_dim %v: %d pairs of %d columns are rotary, want %d", value, got.Cos.Cols, got.HeadDim,
				pairs)
		}
	}
}
