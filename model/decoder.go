package model

import (
	"encoding/json"
	"fmt"
	"math"

	"lockstep/data/pyjson"
	"lockstep/kernels"
)

// decoder is what the config.json files of pre-norm decoders with grouped-query attention share (names as in
// transformers); a family embeds it, with its defaults.
type decoder struct {
	HiddenSize       int     `json:"hidden_size"`
	Layers           int     `json:"num_hidden_layers"`
	VocabSize        int     `json:"vocab_size"`
	Heads            int     `json:"num_attention_heads"`
	KVHeads          int     `json:"num_key_value_heads"` // absent: Heads
	HeadDim          int     `json:"head_dim"`            // absent: HiddenSize / Heads
	IntermediateSize int     `json:"intermediate_size"`
	Eps              float32 `json:"rms_norm_eps"`
	Positions        int     `json:"max_position_embeddings"`
	Tied             bool    `json:"tie_word_embeddings"`
	AttentionBias    bool    `json:"attention_bias"`
	HiddenAct        string  `json:"hidden_act"`
	ropeFields

	prefix string // of all tensors, in a checkpoint that wraps this model
}

// parse reads a config.json over the defaults in c, which is the family's struct around d.
func (d *decoder) parse(config []byte, c any) error {
	if err := json.Unmarshal(config, c); err != nil {
		return pyjson.Place(config, err)
	}
	if d.KVHeads == 0 {
		d.KVHeads = d.Heads
	}
	if d.HeadDim == 0 && d.Heads > 0 {
		d.HeadDim = d.HiddenSize / d.Heads
	}
	return d.validate()
}

func (d *decoder) validate() error {
	err := positive(
		size{"hidden_size", d.HiddenSize}, size{"num_hidden_layers", d.Layers}, size{"vocab_size", d.VocabSize},
		size{"num_attention_heads", d.Heads},
		size{"num_key_value_heads", d.KVHeads}, size{"head_dim", d.HeadDim}, size{"max_position_embeddings",
			d.Positions})
	switch {
	case err != nil:
		return err
	case d.Layers > mostLayers:
		return fmt.Errorf("num_hidden_layers is %d: want at most %d", d.Layers, mostLayers)
	case d.Heads%d.KVHeads != 0:
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", d.Heads, d.KVHeads)
	case d.HeadDim%2 != 0:
		return fmt.Errorf("head_dim %d is odd: rotary positions need pairs", d.HeadDim)
	case d.Eps < 0:
		return fmt.Errorf("rms_norm_eps is %g: want a number that is not negative", d.Eps)
	case d.HiddenAct != "silu":
		return fmt.Errorf("hidden_act %q: want silu", d.HiddenAct)
	}
	return nil
}

// mostLayers is eight times those of the deepest published model.
const mostLayers = 1024

// size is a field of config.json that must be positive.
type size struct {
	name  string
	value int
}

func positive(fields ...size) error {
	for _, f := range fields {
		if f.value <= 0 {
			return fmt.Errorf("%s is %d: want a positive number", f.name, f.value)
		}
	}
	return nil
}

// chosen wants each token to have one expert at least, and no more than there are.
func chosen(perToken int, experts size) error {
	if perToken <= 0 || perToken > experts.value {
		return fmt.Errorf("num_experts_per_tok %d of %s %d: want 1 to %[2]s", perToken, experts.name, experts.value)
	}
	return nil
}

// allExperts checks a decoder whose every feed-forward is a mixture: intermediate_size is that of an expert.
func allExperts(expertSize, experts, perToken int) error {
	count := size{"num_local_experts", experts}
	if err := positive(size{"intermediate_size", expertSize}, count); err != nil {
		return err
	}
	return chosen(perToken, count)
}

func (d *decoder) norm() kernels.Norm { return kernels.Norm{Eps: d.Eps} }

// graph is the whole model: embedding, then blocks of attention and feed-forward, each after a norm, then norm and
// head. p is the layer's place in the checkpoint.
func (d *decoder) graph(b *builder, attention, feedForward func(p string, layer int) Layer) *Model {
	m := &Model{Hidden: d.HiddenSize, Vocab: d.VocabSize, MaxLength: b.length(d.Positions)}
	m.Embed = Embedding{b.matrix(d.prefix+"model.embed_tokens.weight", d.VocabSize, d.HiddenSize)}
	for l := range d.Layers {
		p := fmt.Sprintf("%smodel.layers.%d.", d.prefix, l)
		b.block(m, Block{
			{b.norm(p+"input_layernorm.weight", d.HiddenSize, d.norm()), attention(p, l)},
			{b.norm(p+"post_attention_layernorm.weight", d.HiddenSize, d.norm()), feedForward(p, l)},
		})
	}
	m.Head = &Head{Norm: b.norm(d.prefix+"model.norm.weight", d.HiddenSize, d.norm()), W: m.Embed.Param}
	if !d.Tied {
		m.Head.W = b.matrix(d.prefix+"lm_head.weight", d.VocabSize, d.HiddenSize)
	}
	return m
}

// queryNorm says what of queries and keys is normed before rotary positions are applied.
type queryNorm int

const (
	noQueryNorm    queryNorm = iota
	headNorm                 // each head, by one weight
	projectionNorm           // all heads together
)

// attention is that of a layer. Families with more than this add it.
func (d *decoder) attention(b *builder, p string, layer int, norm queryNorm, rope ropeConfig) *Attention {
	p += "self_attn."
	q, kv := d.Heads*d.HeadDim, d.KVHeads*d.HeadDim
	a := &Attention{
		QKV: b.biased(d.AttentionBias, b.linear(d.HiddenSize, out{p + "q_proj", q}, out{p + "k_proj", kv},
			out{p + "v_proj", kv})),
		Shape: b.attn(kernels.Attn{Heads: d.Heads, KVHeads: d.KVHeads, HeadDim: d.HeadDim,
			Scale: 1 / math.Sqrt(float64(d.HeadDim))}),
		Rope:  b.rope(rope),
		Block: layer,
		ops:   b.ops,
	}
	if norm == headNorm {
		q, kv = d.HeadDim, d.HeadDim
	}
	if norm != noQueryNorm {
		a.QNorm, a.KNorm = b.norm(p+"q_norm.weight", q, d.norm()), b.norm(p+"k_norm.weight", kv, d.norm())
	}
	a.O = b.linear(d.Heads*d.HeadDim, out{p + "o_proj", d.HiddenSize})
	return a
}

// mlp is a gated feed-forward of some width.
func (d *decoder) mlp(b *builder, p string, width int) *MLP {
	return &MLP{
		GateUp: b.linear(d.HiddenSize, out{p + "gate_proj", width}, out{p + "up_proj", width}),
		Act:    SwiGLU{},
		Down:   b.linear(width, out{p + "down_proj", d.HiddenSize}),
	}
}

// mixture is n experts of some width, that lie one by one in the checkpoint: names are those of gate, up and down below
// p.experts.N. PEFT calls the fused weights memory.gate_up_proj and memory.down_proj.
func (d *decoder) mixture(b *builder, n, width int, memory, p string, names [3]string) *MLP {
	return &MLP{
		GateUp: b.experts(n, d.HiddenSize, memory+".gate_up_proj", []int{width, width}, func(e, i int) string {
			return fmt.Sprintf("%sexperts.%d.%s", p, e, names[i])
		}),
		Act: SwiGLU{},
		Down: b.experts(n, width, memory+".down_proj", []int{d.HiddenSize}, func(e, _ int) string {
			return fmt.Sprintf("%sexperts.%d.%s", p, e, names[2])
		}),
	}
}

var projections = [3]string{"gate_proj", "up_proj", "down_proj"}
