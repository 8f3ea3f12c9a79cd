package model

import (
	"fmt"

	"lockstep/kernels"
)

func init() { families["glm4_moe"] = family{"Glm4MoeForCausalLM", buildGLM4, glm4{}} }

// glm4 is config.json of GLM-4.5 to 4.7 (arXiv 2508.06471; names and defaults as in transformers).
type glm4 struct {
	decoder
	groupedRouter
	QKNorm      bool `json:"use_qk_norm"`
	DenseLayers int  `json:"first_k_dense_replace"`
	ExpertSize  int  `json:"moe_intermediate_size"`
	Shared      int  `json:"n_shared_experts"`
}

func buildGLM4(config []byte, b *builder) (*Model, error) {
	c := &glm4{
		decoder: decoder{
			HiddenSize: 4096, IntermediateSize: 10944, Layers: 46, Heads: 96, KVHeads: 8, VocabSize: 151552, Eps: 1e-5,
			Positions: 131072, HiddenAct: "silu",
			ropeFields: ropeFields{Partial: 0.5},
		},
		groupedRouter: groupedRouter{Experts: 128, ExpertsPerToken: 8, Groups: 1, TopGroups: 1, NormTopK: true,
			Scale: 1},
		DenseLayers: 1, ExpertSize: 1408, Shared: 1,
	}
	if err := c.parse(config, c); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	rope, err := c.resolve(c.Positions, c.HeadDim)
	if err != nil {
		return nil, err
	}
	norm := noQueryNorm
	if c.QKNorm {
		norm = headNorm
	}
	m := c.graph(b, func(p string, layer int) Layer {
		return c.attention(b, p, layer, norm, rope)
	}, func(p string, layer int) Layer {
		p += "mlp."
		if layer < c.DenseLayers {
			return c.mlp(b, p, c.IntermediateSize)
		}
		return c.sharedMixture(b, &c.groupedRouter, p, c.ExpertSize, c.Shared)
	})
	m.skip = nextTokenLayers(c.prefix, c.Layers)
	return m, nil
}

func (c *glm4) check() error {
	if err := positive(size{"intermediate_size", c.IntermediateSize}, size{"moe_intermediate_size", c.ExpertSize},
		size{"n_shared_experts", c.Shared}); err != nil {
		return err
	}
	return c.groupedRouter.check()
}

// groupedRouter is the part of config.json that says how DeepSeek-V3 (arXiv 2412.19437) and those after it select
// experts: by sigmoid scores and a balance that is not trained, from the best groups.
type groupedRouter struct {
	Experts         int     `json:"n_routed_experts"`
	ExpertsPerToken int     `json:"num_experts_per_tok"`
	Groups          int     `json:"n_group"`
	TopGroups       int     `json:"topk_group"`
	NormTopK        bool    `json:"norm_topk_prob"`
	Scale           float32 `json:"routed_scaling_factor"`
}

func (c *groupedRouter) check() error {
	if err := positive(size{"n_routed_experts", c.Experts}, size{"num_experts_per_tok", c.ExpertsPerToken},
		size{"n_group", c.Groups}, size{"topk_group", c.TopGroups}); err != nil {
		return err
	}
	inGroup := c.Experts / c.Groups
	switch {
	case c.Experts%c.Groups != 0 || c.Groups > kernels.MaxGroups || c.Groups > 1 && inGroup < 2:
		return fmt.Errorf("n_group %d of n_routed_experts %d: want at most %d equal groups of two experts or more",
			c.Groups, c.Experts, kernels.MaxGroups)
	case c.TopGroups > c.Groups:
		return fmt.Errorf("topk_group %d of n_group %d: want 1 to n_group", c.TopGroups, c.Groups)
	case c.ExpertsPerToken > c.TopGroups*inGroup:
		return fmt.Errorf("num_experts_per_tok %d: topk_group %d groups have %d experts", c.ExpertsPerToken,
			c.TopGroups, c.TopGroups*inGroup)
	case c.Scale <= 0:
		return fmt.Errorf("routed_scaling_factor is %g: want a positive number", c.Scale)
	}
	return nil
}

// router is that of a layer whose gate is p in the checkpoint. One group is the same as no groups.
func (c *groupedRouter) router(b *builder, p string, hidden int) *Router {
	s := kernels.Router{Sigmoid: true, Norm: c.NormTopK, Scale: c.Scale}
	if c.NormTopK {
		s.Epsilon = 1e-20
	}
	if c.Groups > 1 {
		s.Groups, s.TopGroups = c.Groups, c.TopGroups
	}
	return &Router{W: b.matrix(p+".weight", c.Experts, hidden), Balance: b.buffer(p+".e_score_correction_bias",
		c.Experts), Settings: s}
}

// sharedMixture is experts selected by a grouped router, and shared experts, computed as one, that take every token.
func (d *decoder) sharedMixture(b *builder, r *groupedRouter, p string, width, shared int) *MoE {
	return &MoE{
		Router:  r.router(b, p+"gate", d.HiddenSize),
		Experts: d.mixture(b, r.Experts, width, p+"experts", p, projections),
		TopK:    r.ExpertsPerToken,
		Shared:  d.mlp(b, p+"shared_experts.", width*shared),
	}
}

// nextTokenLayers tells whether a tensor belongs to a layer of multi-token prediction, behind the last layer.
func nextTokenLayers(prefix string, layers int) func(name string) bool {
	return func(name string) bool {
		var l int
		n, err := fmt.Sscanf(name, prefix+"model.layers.%d.", &l)
		return err == nil && n == 1 && l >= layers
	}
}
