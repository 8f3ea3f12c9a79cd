package model

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"lockstep/data/pyjson"
	"lockstep/kernels"
)

func init() {
	families["deepseek_v3"] = family{"DeepseekV3ForCausalLM", buildDeepSeek, deepSeek{}}
	families["kimi_k2"] = family{"DeepseekV3ForCausalLM", buildDeepSeek, deepSeek{}}
	families["kimi_k25"] = family{"Kimi_K25ForConditionalGeneration", buildKimiWrapped, deepSeek{}}
	families["glm4_moe_lite"] = family{"Glm4MoeLiteForCausalLM", buildGLM4Lite, deepSeek{}}
}

// deepSeek is config.json of DeepSeek-V3 (arXiv 2412.19437), Kimi K2 to K2.6 (arXiv 2507.20534; text), and
// GLM-4.7-Flash; names as in transformers.
type deepSeek struct {
	decoder
	groupedRouter
	latents
	DenseLayers int      `json:"first_k_dense_replace"`
	MLPTypes    []string `json:"mlp_layer_types"` // "dense" or "sparse"; wins over DenseLayers
	ExpertSize  int      `json:"moe_intermediate_size"`
	Shared      int      `json:"n_shared_experts"`
}

// latents are the sizes of [MLA].
type latents struct {
	QueryRank  *int `json:"q_lora_rank"` // null: queries come from the input itself
	KVRank     int  `json:"kv_lora_rank"`
	NopeDim    int  `json:"qk_nope_head_dim"`
	RopeDim    int  `json:"qk_rope_head_dim"`
	ValueDim   int  `json:"v_head_dim"`
	Interleave bool `json:"rope_interleave"`
}

func buildDeepSeek(config []byte, b *builder) (*Model, error) { return newDeepSeek("").read(config, b) }

// buildGLM4Lite has the defaults of GLM-4.7-Flash.
func buildGLM4Lite(config []byte, b *builder) (*Model, error) {
	rank := 768
	c := &deepSeek{
		decoder: decoder{
			HiddenSize: 2048, IntermediateSize: 10240, Layers: 47, Heads: 20, VocabSize: 154880, Eps: 1e-5,
			Positions: 202752, HiddenAct: "silu",
		},
		groupedRouter: groupedRouter{Experts: 64, ExpertsPerToken: 4, Groups: 1, TopGroups: 1, NormTopK: true,
			Scale: 1.8},
		latents: latents{QueryRank: &rank, KVRank: 512, NopeDim: 192, RopeDim: 64, ValueDim: 256,
			Interleave: true},
		DenseLayers: 1, ExpertSize: 1536, Shared: 1,
	}
	return c.read(config, b)
}

// buildKimiWrapped is the text model inside a checkpoint that sees images too. All other tensors are left alone.
func buildKimiWrapped(config []byte, b *builder) (*Model, error) {
	var outer struct {
		Text json.RawMessage `json:"text_config"`
	}
	if err := json.Unmarshal(config, &outer); err != nil {
		return nil, pyjson.Place(config, err)
	}
	if len(outer.Text) == 0 || string(outer.Text) == "null" {
		return nil, fmt.Errorf("no text_config: a model with vision describes its text model there")
	}
	const prefix = "language_model."
	m, err := newDeepSeek(prefix).read(outer.Text, b)
	if err != nil {
		return nil, fmt.Errorf("text_config: %w", err)
	}
	further := m.skip
	m.skip = func(name string) bool { return !strings.HasPrefix(name, prefix) || further(name) }
	return m, nil
}

func newDeepSeek(prefix string) *deepSeek {
	rank := 1536
	return &deepSeek{
		decoder: decoder{
			HiddenSize: 7168, IntermediateSize: 18432, Layers: 61, Heads: 128, VocabSize: 129280, Eps: 1e-6,
			Positions: 4096, HiddenAct: "silu", prefix: prefix,
		},
		groupedRouter: groupedRouter{Experts: 256, ExpertsPerToken: 8, Groups: 8, TopGroups: 4, NormTopK: true,
			Scale: 2.5},
		latents: latents{QueryRank: &rank, KVRank: 512, NopeDim: 128, RopeDim: 64, ValueDim: 128,
			Interleave: true},
		DenseLayers: 3, ExpertSize: 2048, Shared: 1,
	}
}

func (c *deepSeek) read(config []byte, b *builder) (*Model, error) {
	if err := c.parse(config, c); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	rope, err := c.rope(c.ropeFields, c.Positions)
	if err != nil {
		return nil, err
	}
	m := c.graph(b, func(p string, layer int) Layer {
		return c.mla(b, &c.decoder, p, layer, rope, b.latent(false))
	}, c.feedForward(b))
	m.skip = nextTokenLayers(c.prefix, c.Layers)
	return m, nil
}

// feedForward is a layer's: dense in the first layers, a mixture with a shared expert in the others.
func (c *deepSeek) feedForward(b *builder) func(p string, layer int) Layer {
	return func(p string, layer int) Layer {
		p += "mlp."
		if c.dense(layer) {
			return c.mlp(b, p, c.IntermediateSize)
		}
		return c.sharedMixture(b, &c.groupedRouter, p, c.ExpertSize, c.Shared)
	}
}

func (c *deepSeek) dense(layer int) bool {
	if c.MLPTypes != nil {
		return c.MLPTypes[layer] == "dense"
	}
	return layer < c.DenseLayers
}

func (c *deepSeek) check() error {
	if err := positive(size{"intermediate_size", c.IntermediateSize}, size{"moe_intermediate_size", c.ExpertSize},
		size{"n_shared_experts", c.Shared}); err != nil {
		return err
	}
	if c.MLPTypes != nil && len(c.MLPTypes) != c.Layers {
		return fmt.Errorf("mlp_layer_types names %d layers of num_hidden_layers %d", len(c.MLPTypes), c.Layers)
	}
	for l, kind := range c.MLPTypes {
		if kind != "dense" && kind != "sparse" {
			return fmt.Errorf("mlp_layer_types[%d] is %q: want dense or sparse", l, kind)
		}
	}
	if c.AttentionBias {
		return fmt.Errorf("attention_bias: latent attention with biases is not supported: no published model has them")
	}
	if err := c.latents.check(); err != nil {
		return err
	}
	return c.groupedRouter.check()
}

func (c *latents) check() error {
	err := positive(size{"kv_lora_rank", c.KVRank}, size{"qk_nope_head_dim", c.NopeDim},
		size{"qk_rope_head_dim", c.RopeDim}, size{"v_head_dim", c.ValueDim})
	switch {
	case err != nil:
		return err
	case c.QueryRank != nil && *c.QueryRank <= 0:
		return fmt.Errorf("q_lora_rank is %d: want a positive number or null", *c.QueryRank)
	case c.RopeDim%2 != 0:
		return fmt.Errorf("qk_rope_head_dim %d is odd: rotary positions need pairs", c.RopeDim)
	}
	return nil
}

// rope applies to the last columns of each query head, and to all of the columns that the keys of all heads share.
func (c *latents) rope(f ropeFields, positions int) (ropeConfig, error) {
	r, err := f.resolve(positions, c.RopeDim)
	r.headDim, r.first, r.interleaved = c.NopeDim+c.RopeDim, c.NopeDim, c.Interleave
	return r, err
}

// latentEps is what the reference has in the norms of latents, whatever rms_norm_eps says.
const latentEps = 1e-6

// mla is a layer's attention in a form. In the checkpoint the rows of a head's keys and values are adjacent.
func (c *latents) mla(b *builder, d *decoder, p string, layer int, rope ropeConfig, form kernels.LatentForm) *MLA {
	p += "self_attn."
	n, r, v, heads := c.NopeDim, c.RopeDim, c.ValueDim, d.Heads
	shape := kernels.Attn{Heads: heads, KVHeads: heads, HeadDim: n + r, ValueDim: v, Scale: c.scale(rope)}
	if form == kernels.LatentAbsorbed {
		shape.KVHeads, shape.HeadDim, shape.ValueDim, shape.Latent = 1, c.KVRank+r, c.KVRank, true
	}
	a := &MLA{Shape: b.attn(shape), Rope: b.rope(rope), NopeDim: n, Form: form, Block: layer, ops: b.ops}
	norm := kernels.Norm{Eps: latentEps}
	kva := out{p + "kv_a_proj_with_mqa", c.KVRank + r}
	if c.QueryRank != nil {
		a.Down = b.linear(d.HiddenSize, out{p + "q_a_proj", *c.QueryRank}, kva)
		a.QNorm = b.norm(p+"q_a_layernorm.weight", *c.QueryRank, norm)
		a.Q = b.linear(*c.QueryRank, out{p + "q_b_proj", heads * (n + r)})
	} else {
		a.Down = b.linear(d.HiddenSize, kva)
		a.Q = b.linear(d.HiddenSize, out{p + "q_proj", heads * (n + r)})
	}
	a.KVNorm = b.norm(p+"kv_a_layernorm.weight", c.KVRank, norm)
	a.KV = b.linear(c.KVRank, out{p + "kv_b_proj", heads * (n + v)})
	a.KV.byHead = form == kernels.LatentAbsorbed
	b.reordered(a.KV, 0, func(row int) int {
		if row < heads*n {
			return row/n*(n+v) + row%n
		}
		row -= heads * n
		return row/v*(n+v) + n + row%v
	})
	a.O = b.linear(heads*v, out{p + "o_proj", d.HiddenSize})
	return a
}

// scale is of scores; yarn sharpens them at every length where mscale_all_dim says so.
func (c *latents) scale(rope ropeConfig) float64 {
	s := 1 / math.Sqrt(float64(c.NopeDim+c.RopeDim))
	if y := rope.scaling; y.kind == "yarn" && y.mscaleAll != 0 {
		s *= y.mscale(y.mscaleAll) * y.mscale(y.mscaleAll)
	}
	return s
}
