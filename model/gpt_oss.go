package model

import (
	"fmt"

	"lockstep/kernels"
)

func init() { families["gpt_oss"] = family{"GptOssForCausalLM", buildGPTOSS, gptOSS{}} }

// gptOSS is config.json of gpt-oss (arXiv 2508.10925; names and defaults as in transformers).
type gptOSS struct {
	decoder
	Experts         int      `json:"num_local_experts"`
	ExpertsPerToken int      `json:"num_experts_per_tok"`
	SlidingWindow   int      `json:"sliding_window"`
	LayerTypes      []string `json:"layer_types"`
	Limit           float32  `json:"swiglu_limit"`
}

func buildGPTOSS(config []byte, b *builder) (*Model, error) {
	c := &gptOSS{
		decoder: decoder{
			HiddenSize: 2880, IntermediateSize: 2880, Layers: 36, Heads: 64, KVHeads: 8, HeadDim: 64, VocabSize: 201088,
			Eps: 1e-5, Positions: 131072,
			HiddenAct: "silu", AttentionBias: true, ropeFields: ropeFields{Theta: 150000},
		},
		Experts: 128, ExpertsPerToken: 4, SlidingWindow: 128, Limit: 7,
	}
	if err := c.parse(config, c); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	rope, err := c.rope()
	if err != nil {
		return nil, err
	}
	return c.graph(b, func(p string, layer int) Layer {
		a := c.attention(b, p, layer, noQueryNorm, rope)
		b.biased(c.AttentionBias, a.O)
		a.Sinks = b.vector(p+"self_attn.sinks", c.Heads, Init{Kind: Normal, Std: b.std})
		a.Shape.Window = c.window(layer)
		return a
	}, func(p string, _ int) Layer {
		p += "mlp."
		return &MoE{
			Router: &Router{
				W:        b.matrix(p+"router.weight", c.Experts, c.HiddenSize),
				Bias:     b.vector(p+"router.bias", c.Experts, Init{Kind: Normal, Std: b.std}),
				Settings: kernels.Router{Norm: true, Scale: 1}, // a softmax over the selected logits alone
			},
			Experts: c.experts(b, p+"experts."),
			TopK:    c.ExpertsPerToken,
		}
	}), nil
}

func (c *gptOSS) check() error {
	if err := allExperts(c.IntermediateSize, c.Experts, c.ExpertsPerToken); err != nil {
		return err
	}
	switch {
	case len(c.LayerTypes) != 0 && len(c.LayerTypes) != c.Layers:
		return fmt.Errorf("layer_types names %d layers of num_hidden_layers %d", len(c.LayerTypes), c.Layers)
	case c.Limit != 7:
		return fmt.Errorf("swiglu_limit is %g: want 7, which the reference has whatever this says", c.Limit)
	}
	for l := range c.Layers {
		if t := c.layerType(l); t != "sliding_attention" && t != "full_attention" {
			return fmt.Errorf("layer_types[%d] is %q: want sliding_attention or full_attention", l, t)
		} else if t == "sliding_attention" && c.SlidingWindow <= 0 {
			return fmt.Errorf("sliding_window is %d, and layer %d slides: want a positive number", c.SlidingWindow, l)
		}
	}
	return nil
}

// rope is yarn where config.json says nothing.
func (c *gptOSS) rope() (ropeConfig, error) {
	if c.Parameters == nil && c.Scaling == nil {
		exact := false
		c.Scaling = &ropeDict{Type: "yarn", Factor: 32, BetaFast: 32, BetaSlow: 1, Truncate: &exact, Original: 4096}
	}
	return c.resolve(c.Positions, c.HeadDim)
}

func (c *gptOSS) layerType(layer int) string {
	switch {
	case len(c.LayerTypes) > 0:
		return c.LayerTypes[layer]
	case layer%2 == 0:
		return "sliding_attention"
	}
	return "full_attention"
}

func (c *gptOSS) window(layer int) int {
	if c.layerType(layer) == "sliding_attention" {
		return c.SlidingWindow
	}
	return 0
}

// experts are one tensor in the checkpoint, a matrix [in, out] for each, with gates at even outputs and ups at odd
// ones. In memory gates come first.
func (c *gptOSS) experts(b *builder, p string) *MLP {
	e, h, n := c.Experts, c.HiddenSize, c.IntermediateSize
	interleaved := func(row int) int { return row%n*2 + row/n }
	return &MLP{
		GateUp: b.inOut(e, 2*n, h, p+"gate_up_proj", interleaved),
		Act:    ClampedSwiGLU{kernels.Clamp{Alpha: 1.702, Limit: c.Limit}},
		Down:   b.inOut(e, h, n, p+"down_proj", nil),
	}
}
