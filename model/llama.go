package model

func init() { families["llama"] = family{"LlamaForCausalLM", buildLlama, llama{}} }

// llama is config.json of Llama 2 and 3 (arXiv 2407.21783; names and defaults as in transformers).
type llama struct {
	decoder
	MLPBias bool `json:"mlp_bias"`
}

func buildLlama(config []byte, b *builder) (*Model, error) {
	c := &llama{decoder: decoder{
		HiddenSize: 4096, IntermediateSize: 11008, Layers: 32, Heads: 32, VocabSize: 32000, Eps: 1e-6, Positions: 2048,
		HiddenAct: "silu",
	}}
	if err := c.parse(config, c); err != nil {
		return nil, err
	}
	if err := positive(size{"intermediate_size", c.IntermediateSize}); err != nil {
		return nil, err
	}
	rope, err := c.resolve(c.Positions, c.HeadDim)
	if err != nil {
		return nil, err
	}
	return c.graph(b, func(p string, layer int) Layer {
		a := c.attention(b, p, layer, noQueryNorm, rope)
		b.biased(c.AttentionBias, a.O)
		return a
	}, func(p string, _ int) Layer {
		m := c.mlp(b, p+"mlp.", c.IntermediateSize)
		b.biased(c.MLPBias, m.GateUp)
		b.biased(c.MLPBias, m.Down)
		return m
	}), nil
}
