package model

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"lockstep/kernels"
)

func init() {
	families["qwen3"] = buildQwen3
	families["qwen3_moe"] = buildQwen3
}

// qwen3 is config.json of Qwen3 (dense) and Qwen3-MoE (arXiv 2505.09388; names and defaults as in transformers).
type qwen3 struct {
	ModelType         string  `json:"model_type"`
	HiddenSize        int     `json:"hidden_size"`
	Layers            int     `json:"num_hidden_layers"`
	VocabSize         int     `json:"vocab_size"`
	Heads             int     `json:"num_attention_heads"`
	KVHeads           int     `json:"num_key_value_heads"`
	HeadDim           int     `json:"head_dim"`
	IntermediateSize  int     `json:"intermediate_size"`
	Eps               float32 `json:"rms_norm_eps"`
	Positions         int     `json:"max_position_embeddings"`
	Tied              bool    `json:"tie_word_embeddings"`
	AttentionBias     bool    `json:"attention_bias"`
	HiddenAct         string  `json:"hidden_act"`
	UseSlidingWindow  bool    `json:"use_sliding_window"`
	SlidingWindow     *int    `json:"sliding_window"`
	MaxWindowLayers   int     `json:"max_window_layers"`
	Experts           int     `json:"num_experts"`
	LocalExperts      int     `json:"num_local_experts"` // newer spelling of the same
	ExpertsPerToken   int     `json:"num_experts_per_tok"`
	ExpertSize        int     `json:"moe_intermediate_size"`
	NormTopK          bool    `json:"norm_topk_prob"`
	DecoderSparseStep int     `json:"decoder_sparse_step"`
	MLPOnlyLayers     []int   `json:"mlp_only_layers"`
	ropeFields
}

func buildQwen3(config []byte, b *builder) (*Model, error) {
	c := qwen3{
		VocabSize: 151936, Heads: 32, Eps: 1e-6, Positions: 32768, HiddenAct: "silu", MaxWindowLayers: 28,
		ExpertsPerToken: 8, ExpertSize: 768, DecoderSparseStep: 1,
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, jsonPlace(config, err)
	}
	c.defaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	rope, err := c.resolve(c.Positions, c.HeadDim)
	if err != nil {
		return nil, err
	}
	return c.build(b, rope), nil
}

func (c *qwen3) norm() kernels.Norm { return kernels.Norm{Eps: c.Eps} }

func (c *qwen3) moe() bool { return c.ModelType == "qwen3_moe" }

func (c *qwen3) defaults() {
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
		if c.moe() {
			c.KVHeads = 4
		}
	}
	if c.HeadDim == 0 {
		c.HeadDim = 128
		if c.moe() && c.Heads > 0 {
			c.HeadDim = c.HiddenSize / c.Heads
		}
	}
	if c.LocalExperts != 0 {
		c.Experts = c.LocalExperts
	}
	if c.moe() && c.Experts == 0 {
		c.Experts = 128
	}
}

func (c *qwen3) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"hidden_size", c.HiddenSize}, {"num_hidden_layers", c.Layers}, {"vocab_size", c.VocabSize}, {"num_attention_heads", c.Heads},
		{"num_key_value_heads", c.KVHeads}, {"head_dim", c.HeadDim}, {"max_position_embeddings", c.Positions},
	} {
		if f.value <= 0 || f.value > 1<<24 {
			return fmt.Errorf("%s is %d: want a positive number", f.name, f.value)
		}
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	case c.HeadDim%2 != 0:
		return fmt.Errorf("head_dim %d is odd: rotary positions need pairs", c.HeadDim)
	case c.HiddenAct != "silu":
		return fmt.Errorf("hidden_act %q: want silu", c.HiddenAct)
	case c.AttentionBias:
		return fmt.Errorf("attention_bias: projections with biases are not supported (no released Qwen3 has them)")
	case c.moe() && (c.ExpertsPerToken <= 0 || c.ExpertsPerToken > c.Experts):
		return fmt.Errorf("num_experts_per_tok %d of num_experts %d: want 1 to num_experts", c.ExpertsPerToken, c.Experts)
	case c.moe() && c.ExpertSize <= 0:
		return fmt.Errorf("moe_intermediate_size is %d: want a positive number", c.ExpertSize)
	case c.moe() && c.DecoderSparseStep <= 0:
		return fmt.Errorf("decoder_sparse_step is %d: want a positive number", c.DecoderSparseStep)
	case c.UseSlidingWindow && (c.SlidingWindow == nil || *c.SlidingWindow <= 0):
		return fmt.Errorf("use_sliding_window without a positive sliding_window")
	}
	for l := range c.Layers {
		if !c.sparse(l) && c.IntermediateSize <= 0 {
			return fmt.Errorf("intermediate_size is %d, and layer %d is dense: want a positive number", c.IntermediateSize, l)
		}
	}
	return nil
}

func (c *qwen3) sparse(layer int) bool {
	return c.moe() && (layer+1)%c.DecoderSparseStep == 0 && !slices.Contains(c.MLPOnlyLayers, layer)
}

func (c *qwen3) window(layer int) int {
	if !c.UseSlidingWindow || !c.moe() && layer < c.MaxWindowLayers {
		return 0
	}
	return *c.SlidingWindow
}

// build is the diagram: embedding, then blocks of attention and feed-forward, then norm and head.
func (c *qwen3) build(b *builder, rope ropeConfig) *Model {
	m := &Model{Hidden: c.HiddenSize, Vocab: c.VocabSize, MaxLength: b.length(c.Positions)}
	m.Embed = b.matrix("model.embed_tokens.weight", c.VocabSize, c.HiddenSize)
	for l := range c.Layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		m.Blocks = append(m.Blocks, Block{
			{b.norm(p+"input_layernorm.weight", c.HiddenSize, c.norm()), c.attention(b, p+"self_attn.", l, rope)},
			{b.norm(p+"post_attention_layernorm.weight", c.HiddenSize, c.norm()), c.feedForward(b, p+"mlp.", l)},
		})
	}
	m.Head = &Head{Norm: b.norm("model.norm.weight", c.HiddenSize, c.norm()), W: m.Embed}
	if !c.Tied {
		m.Head.W = b.matrix("lm_head.weight", c.VocabSize, c.HiddenSize)
	}
	return m
}

func (c *qwen3) attention(b *builder, p string, layer int, rope ropeConfig) *Attention {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	return &Attention{
		QKV:   b.linear(c.HiddenSize, out{p + "q_proj", q}, out{p + "k_proj", kv}, out{p + "v_proj", kv}),
		QNorm: b.norm(p+"q_norm.weight", c.HeadDim, c.norm()),
		KNorm: b.norm(p+"k_norm.weight", c.HeadDim, c.norm()),
		O:     b.linear(q, out{p + "o_proj", c.HiddenSize}),
		Shape: kernels.Attn{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Scale: 1 / math.Sqrt(float64(c.HeadDim)), Window: c.window(layer)},
		Rope:  b.rope(rope),
		Block: layer,
	}
}

func (c *qwen3) feedForward(b *builder, p string, layer int) Layer {
	if c.sparse(layer) {
		return c.mixture(b, p)
	}
	return &MLP{
		GateUp: b.linear(c.HiddenSize, out{p + "gate_proj", c.IntermediateSize}, out{p + "up_proj", c.IntermediateSize}),
		Act:    SwiGLU{},
		Down:   b.linear(c.IntermediateSize, out{p + "down_proj", c.HiddenSize}),
	}
}

func (c *qwen3) mixture(b *builder, p string) *MoE {
	names := []string{"gate_proj", "up_proj"}
	return &MoE{
		Router: &Router{W: b.matrix(p+"gate.weight", c.Experts, c.HiddenSize), Settings: kernels.Router{Norm: c.NormTopK, Scale: 1}},
		Experts: &MLP{
			GateUp: b.experts(c.Experts, c.HiddenSize, p+"experts.gate_up_proj", []int{c.ExpertSize, c.ExpertSize}, func(e, i int) string {
				return fmt.Sprintf("%sexperts.%d.%s", p, e, names[i])
			}),
			Act: SwiGLU{},
			Down: b.experts(c.Experts, c.ExpertSize, p+"experts.down_proj", []int{c.HiddenSize}, func(e, _ int) string {
				return fmt.Sprintf("%sexperts.%d.down_proj", p, e)
			}),
		},
		TopK: c.ExpertsPerToken,
	}
}
