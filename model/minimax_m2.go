package model

import (
	"fmt"
	"slices"

	"lockstep/kernels"
)

func init() { families["minimax_m2"] = family{"MiniMaxM2ForCausalLM", buildMiniMax, minimax{}} }

// minimax is config.json of MiniMax M2 to M2.7 (names and defaults as in transformers and in the releases).
type minimax struct {
	decoder
	LocalExperts    int    `json:"num_local_experts"`
	Experts         int    `json:"num_experts"` // another spelling of the same
	ExpertsPerToken int    `json:"num_experts_per_tok"`
	RotaryDim       int    `json:"rotary_dim"` // where no partial_rotary_factor is given
	QKNorm          bool   `json:"use_qk_norm"`
	QKNormType      string `json:"qk_norm_type"`
	Scoring         string `json:"scoring_func"`
	RoutingBias     bool   `json:"use_routing_bias"`
	SharedSize      int    `json:"shared_intermediate_size"`
	AttentionTypes  []int  `json:"attn_type_list"`
}

func buildMiniMax(config []byte, b *builder) (*Model, error) {
	c := &minimax{
		decoder: decoder{
			HiddenSize: 3072, IntermediateSize: 1536, Layers: 62, Heads: 48, KVHeads: 8, HeadDim: 128,
			VocabSize: 200064, Eps: 1e-6, Positions: 196608, HiddenAct: "silu",
			ropeFields: ropeFields{Theta: 5e6},
		},
		LocalExperts: 256, ExpertsPerToken: 8, QKNorm: true, QKNormType: "per_layer", Scoring: "sigmoid",
		RoutingBias: true,
	}
	if err := c.parse(config, c); err != nil {
		return nil, err
	}
	if c.Experts == 0 {
		c.Experts = c.LocalExperts
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	rope, err := c.rope()
	if err != nil {
		return nil, err
	}
	m := c.graph(b, func(p string, layer int) Layer {
		return c.attention(b, p, layer, projectionNorm, rope)
	}, func(p string, _ int) Layer {
		disk := p + "block_sparse_moe."
		router := b.matrix(disk+"gate.weight", c.Experts, c.HiddenSize)
		router.Name = p + "mlp.gate.weight"
		return &MoE{
			Router: &Router{
				W: router, Balance: b.buffer(disk+"e_score_correction_bias", c.Experts),
				Settings: kernels.Router{Sigmoid: true, Norm: true, Scale: 1},
			},
			Experts: c.mixture(b, c.Experts, c.IntermediateSize, p+"mlp.experts", disk, [3]string{"w1", "w3", "w2"}),
			TopK:    c.ExpertsPerToken,
		}
	})
	return m, nil
}

func (c *minimax) check() error {
	if err := allExperts(c.IntermediateSize, c.Experts, c.ExpertsPerToken); err != nil {
		return err
	}
	switch {
	case !c.QKNorm || c.QKNormType != "per_layer":
		return fmt.Errorf("use_qk_norm %v, qk_norm_type %q: want true and per_layer", c.QKNorm, c.QKNormType)
	case c.Scoring != "sigmoid" || !c.RoutingBias:
		return fmt.Errorf("scoring_func %q, use_routing_bias %v: want sigmoid and true", c.Scoring, c.RoutingBias)
	case c.SharedSize != 0 || c.AttentionBias:
		return fmt.Errorf("shared_intermediate_size %d, attention_bias %v: no released MiniMax M2 has them",
			c.SharedSize, c.AttentionBias)
	case slices.ContainsFunc(c.AttentionTypes, func(t int) bool { return t != 1 }):
		return fmt.Errorf("attn_type_list %v: want 1, full attention, everywhere", c.AttentionTypes)
	}
	return nil
}

// rope applies to rotary_dim columns unless partial_rotary_factor is set.
func (c *minimax) rope() (ropeConfig, error) {
	if c.Partial == 0 && c.RotaryDim > 0 {
		c.Partial = float64(c.RotaryDim) / float64(c.HeadDim)
	}
	return c.resolve(c.Positions, c.HeadDim)
}
