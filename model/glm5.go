package model

import (
	"fmt"
	"math"

	"lockstep/kernels"
)

func init() { families["glm_moe_dsa"] = family{"GlmMoeDsaForCausalLM", buildGLM5, glm5{}} }

// glm5 is config.json of GLM-5 to 5.2: DeepSeek-V3 with sparse attention (names as in transformers).
type glm5 struct {
	deepSeek
	IndexHeads int `json:"index_n_heads"`
	IndexDim   int `json:"index_head_dim"`
	TopK       int `json:"index_topk"`
	// "full": an indexer of its own, "shared": keys selected by the last full layer before
	IndexTypes []string `json:"indexer_types"`
	Pattern    string   `json:"index_topk_pattern"`     // the same as letters F and S
	Frequency  int      `json:"index_topk_freq"`        // or: every so many layers is full,
	Offset     int      `json:"index_skip_topk_offset"` // from this one on
}

func buildGLM5(config []byte, b *builder) (*Model, error) {
	rank := 2048
	c := &glm5{
		deepSeek: deepSeek{
			decoder: decoder{
				HiddenSize: 6144, IntermediateSize: 12288, Layers: 78, Heads: 64, VocabSize: 154880, Eps: 1e-5,
				Positions: 202752, HiddenAct: "silu",
			},
			groupedRouter: groupedRouter{Experts: 256, ExpertsPerToken: 8, Groups: 1, TopGroups: 1, NormTopK: true,
				Scale: 2.5},
			latents: latents{QueryRank: &rank, KVRank: 512, NopeDim: 192, RopeDim: 64, ValueDim: 256,
				Interleave: true},
			DenseLayers: 3, ExpertSize: 2048, Shared: 1,
		},
		IndexHeads: 32, IndexDim: 128, TopK: 2048,
	}
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
	require[kernels.SparseAttention](b, "sparse attention")
	if b.indexing != IndexersFrozen {
		require[kernels.IndexerLoss](b, "the training of indexers")
	}
	selectedBy := 0
	m := c.graph(b, func(p string, layer int) Layer {
		a := c.mla(b, &c.decoder, p, layer, rope, b.latent(true))
		if c.full(layer) {
			a.Index, selectedBy = c.indexer(b, p+"self_attn.indexer.", a.Shape, layer, rope), layer
		}
		a.Sparse, a.SelectedBy, a.TopK = b.indexing != IndexersDense, selectedBy, c.TopK
		return a
	}, c.feedForward(b))
	m.skip = nextTokenLayers(c.prefix, c.Layers)
	return m, nil
}

// full tells whether a layer has an indexer of its own.
func (c *glm5) full(layer int) bool {
	switch {
	case c.IndexTypes != nil:
		return c.IndexTypes[layer] == "full"
	case c.Pattern != "":
		return c.Pattern[layer] == 'F'
	case c.Frequency > 0:
		return max(layer-c.Offset+1, 0)%c.Frequency == 0
	}
	return true
}

func (c *glm5) check() error {
	if err := positive(size{"index_n_heads", c.IndexHeads}, size{"index_head_dim", c.IndexDim},
		size{"index_topk", c.TopK}); err != nil {
		return err
	}
	switch {
	case c.QueryRank == nil:
		return fmt.Errorf("q_lora_rank is null: the indexer reads the query latent, want its size")
	case c.IndexDim < c.RopeDim:
		return fmt.Errorf("index_head_dim %d is below qk_rope_head_dim %d, the rotary columns", c.IndexDim,
			c.RopeDim)
	case c.IndexTypes != nil && len(c.IndexTypes) != c.Layers:
		return fmt.Errorf("indexer_types names %d layers of num_hidden_layers %d", len(c.IndexTypes), c.Layers)
	case c.IndexTypes == nil && c.Pattern != "" && len(c.Pattern) != c.Layers:
		return fmt.Errorf("index_topk_pattern names %d layers of num_hidden_layers %d", len(c.Pattern), c.Layers)
	}
	for l, kind := range c.IndexTypes {
		if kind != "full" && kind != "shared" {
			return fmt.Errorf("indexer_types[%d] is %q: want full or shared", l, kind)
		}
	}
	if !c.full(0) {
		return fmt.Errorf("layer 0 has no indexer of its own (indexer_types, index_topk_pattern or index_topk_freq): " +
			"no layer before it has selected keys")
	}
	return c.deepSeek.check()
}

// indexer is a full layer's, whose attention has the shape. Rotary positions apply to its first columns, as to the keys
// of attention.
func (c *glm5) indexer(b *builder, p string, shape kernels.Attn, layer int, rope ropeConfig) *Indexer {
	own := func(w *Param) *Param {
		w.Buffer = b.indexing == IndexersFrozen
		return w
	}
	rope.headDim, rope.first = c.IndexDim, 0
	n := &Indexer{
		Q:       own(b.matrix(p+"wq_b.weight", c.IndexHeads*c.IndexDim, *c.QueryRank)),
		K:       own(b.matrix(p+"wk.weight", c.IndexDim, c.HiddenSize)),
		KNorm:   own(b.vector(p+"k_norm.weight", c.IndexDim, Init{Kind: Ones})),
		KBias:   own(b.vector(p+"k_norm.bias", c.IndexDim, Init{Kind: Zeros})),
		Weights: own(b.matrix(p+"weights_proj.weight", c.IndexHeads, c.HiddenSize)),
		Eps:     1e-6,
		Scale:   float32(1 / math.Sqrt(float64(c.IndexHeads))),
		Shape: b.indexed(shape, kernels.Index{Heads: c.IndexHeads, Dim: c.IndexDim, TopK: c.TopK,
			Scale: 1 / math.Sqrt(float64(c.IndexDim))}),
		Rope:    b.rope(rope),
		Place:   len(b.indexers),
		Block:   layer,
		Selects: b.indexing != IndexersDense,
		ops:     b.ops,
	}
	b.indexers = append(b.indexers, n)
	return n
}
