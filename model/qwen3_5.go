package model

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"lockstep/data/pyjson"
	"lockstep/kernels"
)

func init() {
	families["qwen3_5_text"] = family{"Qwen3_5ForCausalLM", buildQwen35, qwen35{}}
	families["qwen3_5_moe_text"] = family{"Qwen3_5MoeForCausalLM", buildQwen35, qwen35{}}
	families["qwen3_next"] = family{"Qwen3NextForCausalLM", buildQwen35, qwen35{}}
	families["qwen3_5"] = family{"Qwen3_5ForConditionalGeneration", buildQwen35Wrapped, qwen35{}}
	families["qwen3_5_moe"] = family{"Qwen3_5MoeForConditionalGeneration", buildQwen35Wrapped, qwen35{}}
}

// qwen35 is config.json of Qwen3.5 (dense and MoE, text) and Qwen3-Next; names and defaults as in transformers.
type qwen35 struct {
	decoder
	ModelType       string   `json:"model_type"`
	LayerTypes      []string `json:"layer_types"`
	FullEvery       int      `json:"full_attention_interval"`
	KeyHeads        int      `json:"linear_num_key_heads"`
	ValueHeads      int      `json:"linear_num_value_heads"`
	KeyDim          int      `json:"linear_key_head_dim"`
	ValueDim        int      `json:"linear_value_head_dim"`
	Taps            int      `json:"linear_conv_kernel_dim"`
	Experts         int      `json:"num_experts"`
	ExpertsPerToken int      `json:"num_experts_per_tok"`
	ExpertSize      int      `json:"moe_intermediate_size"`
	SharedSize      int      `json:"shared_expert_intermediate_size"`
	NormTopK        *bool    `json:"norm_topk_prob"` // of Qwen3-Next alone
	SparseStep      int      `json:"decoder_sparse_step"`
	MLPOnlyLayers   []int    `json:"mlp_only_layers"`

	textModel string // of the text model's tensors
}

func buildQwen35(config []byte, b *builder) (*Model, error) {
	return (&qwen35{textModel: "model."}).read(config, b)
}

// buildQwen35Wrapped is the text model inside a checkpoint that sees images too. Its vision tensors are left alone.
func buildQwen35Wrapped(config []byte, b *builder) (*Model, error) {
	var outer struct {
		Text json.RawMessage `json:"text_config"`
		Tied bool            `json:"tie_word_embeddings"`
	}
	if err := json.Unmarshal(config, &outer); err != nil {
		return nil, pyjson.Place(config, err)
	}
	if outer.Text == nil {
		return nil, fmt.Errorf("no text_config: a model with vision describes its text model there")
	}
	m, err := (&qwen35{textModel: "model.language_model.", decoder: decoder{Tied: outer.Tied}}).read(outer.Text, b)
	if err != nil {
		return nil, fmt.Errorf("text_config: %w", err)
	}
	return m, nil
}

func (c *qwen35) read(config []byte, b *builder) (*Model, error) {
	c.Heads, c.KVHeads, c.HeadDim, c.Eps, c.Positions, c.HiddenAct, c.Partial = 16, 2, 256, 1e-6, 32768, "silu", 0.25
	c.KeyHeads, c.ValueHeads, c.KeyDim, c.ValueDim, c.Taps, c.FullEvery, c.SparseStep = 16, 32, 128, 128, 4, 4, 1
	if err := c.parse(config, c); err != nil {
		return nil, err
	}
	if c.LayerTypes == nil {
		for l := range c.Layers {
			c.LayerTypes = append(c.LayerTypes, map[bool]string{true: fullAttention,
				false: linearAttention}[(l+1)%max(c.FullEvery, 1) == 0])
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	rope, err := c.resolve(c.Positions, c.HeadDim)
	if err != nil {
		return nil, err
	}
	require[kernels.DeltaNet](b, "Gated DeltaNet")
	return c.build(b, rope), nil
}

// The names of layers in layer_types.
const (
	linearAttention = "linear_attention"
	fullAttention   = "full_attention"
)

func (c *qwen35) moe() bool  { return c.ModelType == "qwen3_5_moe_text" || c.next() }
func (c *qwen35) next() bool { return c.ModelType == "qwen3_next" }

func (c *qwen35) sparse(layer int) bool {
	return c.moe() && (layer+1)%c.SparseStep == 0 && !slices.Contains(c.MLPOnlyLayers, layer)
}

// check validates what parse does not.
func (c *qwen35) check() error {
	err := positive(
		size{"linear_num_key_heads", c.KeyHeads}, size{"linear_num_value_heads", c.ValueHeads},
		size{"linear_key_head_dim", c.KeyDim},
		size{"linear_value_head_dim", c.ValueDim}, size{"decoder_sparse_step", c.SparseStep})
	wrong := chosen(c.ExpertsPerToken, size{"num_experts", c.Experts})
	switch {
	case err != nil:
		return err
	case len(c.LayerTypes) != c.Layers:
		return fmt.Errorf("layer_types names %d layers, num_hidden_layers is %d", len(c.LayerTypes), c.Layers)
	case c.ValueHeads%c.KeyHeads != 0:
		return fmt.Errorf("linear_num_value_heads %d is not a multiple of linear_num_key_heads %d", c.ValueHeads,
			c.KeyHeads)
	case c.Taps < 2 || c.Taps > 64:
		return fmt.Errorf("linear_conv_kernel_dim is %d: want 2 to 64", c.Taps)
	case c.AttentionBias:
		return fmt.Errorf("attention_bias: projections with biases are not supported (no released model of this " +
			"family has them)")
	case c.moe() && wrong != nil:
		return wrong
	case c.moe() && (c.ExpertSize <= 0 || c.SharedSize <= 0):
		return fmt.Errorf("moe_intermediate_size %d, shared_expert_intermediate_size %d: want positive numbers",
			c.ExpertSize, c.SharedSize)
	}
	for l, kind := range c.LayerTypes {
		if kind != linearAttention && kind != fullAttention {
			return fmt.Errorf("layer_types: layer %d is %q: want %s or %s", l, kind, linearAttention, fullAttention)
		}
		if !c.sparse(l) && c.IntermediateSize <= 0 {
			return fmt.Errorf("intermediate_size is %d, and layer %d is dense: want a positive number",
				c.IntermediateSize, l)
		}
	}
	return nil
}

// build is the whole model: embedding, then blocks of DeltaNet or gated attention, and a feed-forward; then norm and
// head.
func (c *qwen35) build(b *builder, rope ropeConfig) *Model {
	m := &Model{Hidden: c.HiddenSize, Vocab: c.VocabSize, MaxLength: b.length(c.Positions),
		skip: func(name string) bool {
			return strings.HasPrefix(name, "model.visual.") || strings.HasPrefix(name, "mtp.")
		}}
	m.Embed = Embedding{b.matrix(c.textModel+"embed_tokens.weight", c.VocabSize, c.HiddenSize)}
	for l, kind := range c.LayerTypes {
		p := fmt.Sprintf("%slayers.%d.", c.textModel, l)
		bl := Block{{Norm: c.norm(b, p+"input_layernorm.weight", c.HiddenSize)}, {}}
		if kind == linearAttention {
			bl[0].Layer = c.deltaNet(b, p+"linear_attn.", l)
		} else {
			bl[0].Layer = c.attention(b, p+"self_attn.", l, rope)
		}
		bl[1] = Sublayer{c.norm(b, p+"post_attention_layernorm.weight", c.HiddenSize), c.feedForward(b, p+"mlp.", l)}
		b.block(m, bl)
	}
	m.Head = &Head{Norm: c.norm(b, c.textModel+"norm.weight", c.HiddenSize), W: m.Embed.Param}
	if !c.Tied {
		m.Head.W = b.matrix("lm_head.weight", c.VocabSize, c.HiddenSize)
	}
	return m
}

// norm is RMSNorm whose weight is stored minus 1.
func (c *qwen35) norm(b *builder, name string, n int) *Norm {
	return b.norm(name, n, kernels.Norm{Eps: c.Eps, PlusOne: true})
}

// deltaNet has the parameters of the decays, and the norm, in fp32, like the checkpoints. Initial values are those of
// the reference.
func (c *qwen35) deltaNet(b *builder, p string, layer int) *DeltaNet {
	keys, values := c.KeyHeads*c.KeyDim, c.ValueHeads*c.ValueDim
	channels := 2*keys + values
	n := &DeltaNet{ops: b.ops}
	n.Conv = b.conv(p+"conv1d.weight", channels, c.Taps)
	n.Decay = decay{
		Rate: b.fp32(p+"A_log", c.ValueHeads, Init{Kind: Drawn, Draw: decayRate}),
		Bias: b.fp32(p+"dt_bias", c.ValueHeads, Init{Kind: Ones}),
		Hi:   forever,
	}
	n.Norm = &Norm{W: b.fp32(p+"norm.weight", c.ValueDim, Init{Kind: Ones}), Norm: kernels.Norm{Eps: c.Eps}}
	n.Out = b.linear(values, out{p + "out_proj", c.HiddenSize})
	n.Shape = b.recurrence(kernels.Recurrence{KeyHeads: c.KeyHeads, Heads: c.ValueHeads, KeyDim: c.KeyDim,
		ValueDim: c.ValueDim}, true)
	n.Block = layer
	if c.next() {
		n.In = b.linear(c.HiddenSize, out{p + "in_proj_qkvz", channels + values},
			out{p + "in_proj_ba", 2 * c.ValueHeads})
		b.reordered(n.In, 0, c.packedQKVZ)
		b.reordered(n.In, 1, c.packedBA)
	} else {
		n.In = b.linear(c.HiddenSize, out{p + "in_proj_qkv", channels}, out{p + "in_proj_z", values},
			out{p + "in_proj_b", c.ValueHeads}, out{p + "in_proj_a", c.ValueHeads})
	}
	return n
}

// decayRate is A_log of a decay that is uniform in [0.01, 16).
func decayRate(_ int, u float64) float32 { return kernels.Ln(float32(0.01 + float64(u*15.99))) }

// packedQKVZ is where Qwen3-Next has row i of q, k, v and z on disk: rows of a key head lie together, its queries, its
// keys, the values and the gates of its heads.
func (c *qwen35) packedQKVZ(i int) int {
	group := c.ValueHeads / c.KeyHeads * c.ValueDim
	at := 0
	for _, size := range []int{c.KeyDim, c.KeyDim, group, group} {
		if i < c.KeyHeads*size {
			return i/size*(2*c.KeyDim+2*group) + at + i%size
		}
		i -= c.KeyHeads * size
		at += size
	}
	panic("model: a row behind q, k, v and z")
}

// packedBA is the same of b and a.
func (c *qwen35) packedBA(i int) int {
	group := c.ValueHeads / c.KeyHeads
	kind, head := i/c.ValueHeads, i%c.ValueHeads
	return head/group*2*group + kind*group + head%group
}

// attention has a gate for every column of its output. On disk the gate's rows of a head follow its query's.
func (c *qwen35) attention(b *builder, p string, layer int, rope ropeConfig) *Attention {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	pairs := func(i int) int { return i%q/c.HeadDim*2*c.HeadDim + i/q*c.HeadDim + i%c.HeadDim }
	a := &Attention{
		QKV:   b.linear(c.HiddenSize, out{p + "q_proj", 2 * q}, out{p + "k_proj", kv}, out{p + "v_proj", kv}),
		QNorm: c.norm(b, p+"q_norm.weight", c.HeadDim),
		KNorm: c.norm(b, p+"k_norm.weight", c.HeadDim),
		O:     b.linear(q, out{p + "o_proj", c.HiddenSize}),
		Gated: true,
		Shape: b.attn(kernels.Attn{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
			Scale: 1 / math.Sqrt(float64(c.HeadDim))}),
		Rope:  b.rope(rope),
		Block: layer,
		ops:   b.ops,
	}
	b.reordered(a.QKV, 0, pairs)
	return a
}

func (c *qwen35) feedForward(b *builder, p string, layer int) Layer {
	if !c.sparse(layer) {
		return c.mlp(b, p, c.IntermediateSize)
	}
	experts := c.mixture(b, c.Experts, c.ExpertSize, p+"experts", p, projections)
	b.packed(experts.GateUp)
	b.packed(experts.Down)
	return &MoE{
		Router: &Router{W: b.matrix(p+"gate.weight", c.Experts, c.HiddenSize),
			Settings: kernels.Router{Norm: c.NormTopK == nil || *c.NormTopK, Scale: 1}},
		Experts: experts,
		TopK:    c.ExpertsPerToken,
		Shared: &GatedMLP{MLP: c.mlp(b, p+"shared_expert.", c.SharedSize), Gate: b.linear(c.HiddenSize,
			out{p + "shared_expert_gate", 1}), ops: b.ops},
	}
}
