package model

import "fmt"

// This file is a family as README's "Adding a family" says: nothing else of the program knows of it. Its golden is made
// by .ci/transformers/golden_toy.py.

func init() { families["toy"] = family{"ToyForCausalLM", buildToy, toy{}} }

// toy is config.json of an unpublished model: a Llama with norms of whole projections, a window on odd layers
// and mixtures on even ones.
type toy struct {
	decoder
	groupedRouter
	Window     int `json:"sliding_window"`
	ExpertSize int `json:"moe_intermediate_size"`
	Shared     int `json:"n_shared_experts"`
}

func buildToy(config []byte, b *builder) (*Model, error) {
	c := &toy{decoder: decoder{Eps: 1e-5, HiddenAct: "silu"}, groupedRouter: groupedRouter{Groups: 1, TopGroups: 1,
		NormTopK: true, Scale: 1}, Shared: 1}
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
	return c.graph(b, func(p string, layer int) Layer {
		a := c.attention(b, p, layer, projectionNorm, rope)
		if layer%2 == 1 {
			a.Shape.Window = c.Window
		}
		return a
	}, func(p string, layer int) Layer {
		p += "mlp."
		if layer%2 == 1 {
			return c.mlp(b, p, c.IntermediateSize)
		}
		return c.sharedMixture(b, &c.groupedRouter, p, c.ExpertSize, c.Shared)
	}), nil
}

func (c *toy) check() error {
	if err := positive(size{"intermediate_size", c.IntermediateSize}, size{"moe_intermediate_size", c.ExpertSize},
		size{"n_shared_experts", c.Shared}); err != nil {
		return err
	}
	if c.Window <= 0 {
		return fmt.Errorf("sliding_window is %d: want a positive number", c.Window)
	}
	return c.groupedRouter.check()
}
