package model

import (
	"fmt"
	"slices"

	"lockstep/kernels"
)

func init() {
	families["qwen3"] = family{"Qwen3ForCausalLM", func(config []byte, b *builder) (*Model, error) {
		return buildQwen3(config, b, &qwen3{decoder: decoder{HeadDim: 128}})
	}, qwen3{}}
	families["qwen3_moe"] = family{"Qwen3MoeForCausalLM", func(config []byte, b *builder) (*Model, error) {
		return buildQwen3(config, b, &qwen3{decoder: decoder{KVHeads: 4}, Experts: 128})
	}, qwen3{}}
}

// qwen3 is config.json of Qwen3 (dense) and Qwen3-MoE (arXiv 2505.09388; names and defaults as in transformers).
type qwen3 struct {
	decoder
	ModelType         string `json:"model_type"`
	UseSlidingWindow  bool   `json:"use_sliding_window"`
	SlidingWindow     *int   `json:"sliding_window"`
	MaxWindowLayers   int    `json:"max_window_layers"`
	Experts           int    `json:"num_experts"`
	LocalExperts      int    `json:"num_local_experts"` // newer spelling of the same
	ExpertsPerToken   int    `json:"num_experts_per_tok"`
	ExpertSize        int    `json:"moe_intermediate_size"`
	NormTopK          bool   `json:"norm_topk_prob"`
	DecoderSparseStep int    `json:"decoder_sparse_step"`
	MLPOnlyLayers     []int  `json:"mlp_only_layers"`
}

// buildQwen3 takes the defaults that differ between the two in c.
func buildQwen3(config []byte, b *builder, c *qwen3) (*Model, error) {
	c.VocabSize, c.Heads, c.Eps, c.Positions, c.HiddenAct = 151936, 32, 1e-6, 32768, "silu"
	c.MaxWindowLayers, c.ExpertsPerToken, c.ExpertSize, c.DecoderSparseStep = 28, 8, 768, 1
	if err := c.parse(config, c); err != nil {
		return nil, err
	}
	if c.LocalExperts != 0 {
		c.Experts = c.LocalExperts
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	rope, err := c.resolve(c.Positions, c.HeadDim)
	if err != nil {
		return nil, err
	}
	return c.graph(b, func(p string, layer int) Layer {
		a := c.attention(b, p, layer, headNorm, rope)
		a.O = b.biased(c.AttentionBias, a.O)
		a.Shape.Window = c.window(layer)
		return a
	}, func(p string, layer int) Layer {
		if !c.sparse(layer) {
			return c.mlp(b, p+"mlp.", c.IntermediateSize)
		}
		return &MoE{
			Router: &Router{W: b.matrix(p+"mlp.gate.weight", c.Experts, c.HiddenSize),
				Settings: kernels.Router{Norm: c.NormTopK, Scale: 1}},
			Experts: c.mixture(b, c.Experts, c.ExpertSize, p+"mlp.experts", p+"mlp.", projections),
			TopK:    c.ExpertsPerToken,
		}
	}), nil
}

func (c *qwen3) moe() bool { return c.ModelType == "qwen3_moe" }

func (c *qwen3) check() error {
	wrong := chosen(c.ExpertsPerToken, size{"num_experts", c.Experts})
	switch {
	case c.moe() && wrong != nil:
		return wrong
	case c.moe() && positive(size{"moe_intermediate_size", c.ExpertSize}, size{"decoder_sparse_step",
		c.DecoderSparseStep}) != nil:
		return positive(size{"moe_intermediate_size", c.ExpertSize}, size{"decoder_sparse_step", c.DecoderSparseStep})
	case c.UseSlidingWindow && (c.SlidingWindow == nil || *c.SlidingWindow <= 0):
		return fmt.Errorf("use_sliding_window without a positive sliding_window")
	}
	for l := range c.Layers {
		if !c.sparse(l) && c.IntermediateSize <= 0 {
			return fmt.Errorf("intermediate_size is %d, and layer %d is dense: want a positive number",
				c.IntermediateSize, l)
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
