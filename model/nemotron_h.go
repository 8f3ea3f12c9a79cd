package model

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"lockstep/data/pyjson"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
)

func init() { families["nemotron_h"] = family{"NemotronHForCausalLM", buildNemotronH, nemotronH{}} }

// nemotronH is config.json of Nemotron-H and Nemotron 3 (arXiv 2504.03624; names and defaults as in transformers).
type nemotronH struct {
	HiddenSize       int             `json:"hidden_size"`
	VocabSize        int             `json:"vocab_size"`
	Types            []string        `json:"layers_block_type"`
	Pattern          string          `json:"hybrid_override_pattern"`
	Heads            int             `json:"num_attention_heads"`
	KVHeads          int             `json:"num_key_value_heads"`
	HeadDim          int             `json:"head_dim"`
	MambaHeads       int             `json:"mamba_num_heads"`
	MambaHeadDim     int             `json:"mamba_head_dim"`
	StateSize        int             `json:"ssm_state_size"`
	Groups           int             `json:"n_groups"`
	Taps             int             `json:"conv_kernel"`
	ConvBias         bool            `json:"use_conv_bias"`
	StepLimit        stepLimit       `json:"time_step_limit"`
	StepMin          float64         `json:"time_step_min"` // the steps that a model starts with
	StepMax          float64         `json:"time_step_max"`
	StepFloor        float64         `json:"time_step_floor"`
	IntermediateSize int             `json:"intermediate_size"`
	Experts          int             `json:"n_routed_experts"`
	ExpertsPerToken  int             `json:"num_experts_per_tok"`
	ExpertSize       int             `json:"moe_intermediate_size"`
	SharedSize       int             `json:"moe_shared_expert_intermediate_size"`
	LatentSize       int             `json:"moe_latent_size"` // 0: experts read the hidden state itself
	Scale            float32         `json:"routed_scaling_factor"`
	NormTopK         bool            `json:"norm_topk_prob"`
	RouteGroups      int             `json:"n_group"`
	TopGroups        int             `json:"topk_group"`
	Eps              float32         `json:"layer_norm_epsilon"`
	Positions        int             `json:"max_position_embeddings"`
	Tied             bool            `json:"tie_word_embeddings"`
	Act              string          `json:"mlp_hidden_act"`
	MambaAct         string          `json:"mamba_hidden_act"`
	SlidingWindow    *int            `json:"sliding_window"`
	UseBias          bool            `json:"use_bias"`
	MLPBias          bool            `json:"mlp_bias"`
	AttentionBias    bool            `json:"attention_bias"`
	MambaBias        bool            `json:"mamba_proj_bias"`
	Puzzle           json.RawMessage `json:"block_configs"`
}

// stepLimit is time_step_limit, the bounds of steps.
type stepLimit []pyjson.Float

// UnmarshalJSON names the field in its errors, which encoding/json does not.
func (l *stepLimit) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, (*[]pyjson.Float)(l)); err != nil {
		return fmt.Errorf("time_step_limit: %w", err)
	}
	return nil
}

// The kinds of layers, by their names in layers_block_type and letters in hybrid_override_pattern.
const (
	mambaLayer     = "mamba"
	attentionLayer = "attention"
	moeLayer       = "moe"
	mlpLayer       = "mlp"
)

var nemotronKinds = map[string]string{
	"M": mambaLayer, mambaLayer: mambaLayer, linearAttention: mambaLayer, "*": attentionLayer,
	attentionLayer: attentionLayer, fullAttention: attentionLayer,
	"E": moeLayer, moeLayer: moeLayer, "-": mlpLayer, mlpLayer: mlpLayer,
}

const defaultStepMin = 1e-3 // time_step_min of transformers

func buildNemotronH(config []byte, b *builder) (*Model, error) {
	c := nemotronH{
		HiddenSize: 4096, VocabSize: 131072, Heads: 32, KVHeads: 8, HeadDim: 128, MambaHeads: 128, MambaHeadDim: 64,
		StateSize: 128, Groups: 8, Taps: 4, ConvBias: true,
		StepLimit: stepLimit{0, pyjson.Float(math.Inf(1))}, StepMin: defaultStepMin, StepMax: 0.1, StepFloor: 1e-4,
		IntermediateSize: 21504, Experts: 8, ExpertsPerToken: 2,
		ExpertSize: 7688, SharedSize: 7688, Scale: 1, NormTopK: true, RouteGroups: 1, TopGroups: 1, Eps: 1e-5,
		Positions: 4096, Act: "relu2", MambaAct: "silu",
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, pyjson.Place(config, err)
	}
	if c.Types == nil {
		c.Types = strings.Split(c.Pattern, "")
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	require[kernels.Mamba](b, "Mamba2")
	return c.build(b), nil
}

func (c *nemotronH) validate() error {
	if err := c.unsupported(); err != nil {
		return err
	}
	err := positive(
		size{"hidden_size", c.HiddenSize}, size{"vocab_size", c.VocabSize}, size{"num_attention_heads", c.Heads},
		size{"num_key_value_heads", c.KVHeads},
		size{"head_dim", c.HeadDim}, size{"mamba_num_heads", c.MambaHeads}, size{"mamba_head_dim", c.MambaHeadDim},
		size{"ssm_state_size", c.StateSize},
		size{"n_groups", c.Groups}, size{"n_group", c.RouteGroups}, size{"intermediate_size", c.IntermediateSize},
		size{"n_routed_experts", c.Experts},
		size{"moe_intermediate_size", c.ExpertSize}, size{"moe_shared_expert_intermediate_size", c.SharedSize},
		size{"max_position_embeddings", c.Positions})
	wrong := chosen(c.ExpertsPerToken, size{"n_routed_experts", c.Experts})
	switch {
	case err != nil:
		return err
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	case c.MambaHeads%c.Groups != 0:
		return fmt.Errorf("mamba_num_heads %d is not a multiple of n_groups %d", c.MambaHeads, c.Groups)
	case c.Taps < 2 || c.Taps > 64:
		return fmt.Errorf("conv_kernel is %d: want 2 to 64", c.Taps)
	case len(c.StepLimit) != 2 || c.StepLimit[0] < 0 || !(c.StepLimit[0] < c.StepLimit[1]):
		return fmt.Errorf("time_step_limit is %v: want two numbers, the first at least 0 and below the second",
			c.StepLimit)
	case wrong != nil:
		return wrong
	case c.RouteGroups > 1 && (c.RouteGroups > kernels.MaxGroups || c.Experts%c.RouteGroups != 0 ||
		c.Experts/c.RouteGroups < 2):
		return fmt.Errorf("n_group %d of n_routed_experts %d: want at most %d equal groups of at least two",
			c.RouteGroups, c.Experts, kernels.MaxGroups)
	case c.RouteGroups > 1 && (c.TopGroups < 1 || c.TopGroups > c.RouteGroups || c.TopGroups*c.Experts/c.RouteGroups <
		c.ExpertsPerToken):
		return fmt.Errorf("topk_group %d of n_group %d holds too few of num_experts_per_tok %d, or too many groups",
			c.TopGroups, c.RouteGroups, c.ExpertsPerToken)
	case !(c.Scale > 0) || c.Scale > 1e6:
		return fmt.Errorf("routed_scaling_factor is %v: want a positive number", c.Scale)
	case c.Eps < 0:
		return fmt.Errorf("layer_norm_epsilon is %g: want a number that is not negative", c.Eps)
	case !(c.StepMin > 0) || !(c.StepMin <= c.StepMax) || c.StepMax > 1e6:
		return fmt.Errorf(
			"time_step_min %v and time_step_max %v: want positive numbers, the first not above the second", c.StepMin,
			c.StepMax)
	case c.LatentSize < 0 || c.LatentSize > 1<<24:
		return fmt.Errorf("moe_latent_size is %d: want a positive number, or null", c.LatentSize)
	}
	if len(c.Types) == 0 || len(c.Types) > mostLayers {
		return fmt.Errorf("layers_block_type or hybrid_override_pattern names %d layers: want 1 to %d", len(c.Types),
			mostLayers)
	}
	for l, kind := range c.Types {
		if nemotronKinds[kind] == "" {
			return fmt.Errorf("layer %d is %q: layers_block_type wants mamba, attention, moe or mlp, "+
				"hybrid_override_pattern M, *, E or -", l, kind)
		}
	}
	return nil
}

// unsupported is an error where a setting would change the computation. No released model has these.
func (c *nemotronH) unsupported() error {
	switch {
	case c.UseBias || c.MLPBias || c.AttentionBias || c.MambaBias:
		return fmt.Errorf("use_bias, mlp_bias, attention_bias, mamba_proj_bias: projections with biases are not " +
			"supported (no released model of this family has them)")
	case c.Tied:
		return fmt.Errorf("tie_word_embeddings: want false, the reference gives this family a head of its own")
	case c.Act != "relu2":
		return fmt.Errorf("mlp_hidden_act %q: want relu2", c.Act)
	case c.MambaAct != "silu":
		return fmt.Errorf("mamba_hidden_act %q: want silu", c.MambaAct)
	case c.SlidingWindow != nil:
		return fmt.Errorf("sliding_window is %d: want null", *c.SlidingWindow)
	case len(c.Puzzle) > 0 && string(c.Puzzle) != "null":
		return fmt.Errorf("block_configs: models whose layers differ in size are not supported")
	}
	return nil
}

// build is the whole model: embedding, then blocks of one sublayer each, then norm and head. There are no positional
// encodings.
func (c *nemotronH) build(b *builder) *Model {
	m := &Model{
		Hidden: c.HiddenSize, Vocab: c.VocabSize, MaxLength: b.length(c.Positions),
		skip:     func(name string) bool { return strings.HasPrefix(name, "mtp.") },
		inMemory: func(name string) string { return strings.Replace(name, "backbone.", "model.", 1) },
	}
	m.Embed = Embedding{b.matrix("backbone.embeddings.weight", c.VocabSize, c.HiddenSize)}
	for l, kind := range c.Types {
		p := fmt.Sprintf("backbone.layers.%d.", l)
		sub := Sublayer{Norm: c.norm(b, p+"norm.weight", c.HiddenSize)}
		switch p += "mixer."; nemotronKinds[kind] {
		case mambaLayer:
			sub.Layer = c.mamba(b, p, l)
		case attentionLayer:
			sub.Layer = c.attention(b, p, l)
		case moeLayer:
			sub.Layer = c.mixture(b, p)
		case mlpLayer:
			sub.Layer = c.mlp(b, p, c.IntermediateSize)
		}
		b.block(m, Block{sub})
	}
	m.Head = &Head{Norm: c.norm(b, "backbone.norm_f.weight", c.HiddenSize), W: b.matrix("lm_head.weight", c.VocabSize,
		c.HiddenSize)}
	return m
}

func (c *nemotronH) norm(b *builder, name string, n int) *Norm {
	return b.norm(name, n, kernels.Norm{Eps: c.Eps})
}

func (c *nemotronH) mamba(b *builder, p string, layer int) *Mamba {
	inner := c.MambaHeads * c.MambaHeadDim
	channels := inner + 2*c.Groups*c.StateSize
	m := &Mamba{Groups: c.Groups, ops: b.ops}
	m.In = b.linear(c.HiddenSize, out{p + "in_proj", inner + channels + c.MambaHeads})
	m.Conv = b.conv(p+"conv1d.weight", channels, c.Taps)
	m.Decay = decay{
		Rate: b.fp32(p+"A_log", c.MambaHeads, Init{Kind: Drawn, Draw: func(i int, _ float64) float32 {
			return kernels.Ln(float32(i + 1))
		}}),
		Bias: b.fp32(p+"dt_bias", c.MambaHeads, Init{Kind: Drawn, Draw: c.stepBias}),
		Lo:   float32(c.StepLimit[0]), Hi: float32(c.StepLimit[1]),
	}
	m.Skip = b.fp32(p+"D", c.MambaHeads, Init{Kind: Ones})
	m.Norm = c.norm(b, p+"norm.weight", inner)
	m.Out = b.linear(inner, out{p + "out_proj", c.HiddenSize})
	m.Shape = b.recurrence(kernels.Recurrence{KeyHeads: c.Groups, Heads: c.MambaHeads, KeyDim: c.StateSize,
		ValueDim: c.MambaHeadDim}, false)
	m.Block = layer
	// Kaiming uniform, divided by the square root of the depth
	m.Out.W.Init = Init{Kind: Uniform, Std: 1 / math.Sqrt(float64(inner*len(c.Types)))}
	if c.ConvBias {
		m.ConvBias = b.vector(p+"conv1d.bias", channels, Init{Kind: Zeros})
	}
	return m
}

// stepBias is what softplus maps to a step whose logarithm is uniform between those of time_step_min and
// time_step_max.
func (c *nemotronH) stepBias(_ int, u float64) float32 {
	lo, hi := kernels.Ln(float32(c.StepMin)), kernels.Ln(float32(c.StepMax))
	step := max(kernels.Exp2Poly.Exp(lo+float32(float32(u)*(hi-lo))), float32(c.StepFloor))
	return step + kernels.Ln(1-kernels.Exp2Poly.Exp(-step))
}

func (c *nemotronH) attention(b *builder, p string, layer int) *Attention {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	return &Attention{
		QKV: b.linear(c.HiddenSize, out{p + "q_proj", q}, out{p + "k_proj", kv}, out{p + "v_proj", kv}),
		O:   b.linear(q, out{p + "o_proj", c.HiddenSize}),
		Shape: b.attn(kernels.Attn{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
			Scale: 1 / math.Sqrt(float64(c.HeadDim))}),
		Block: layer,
		ops:   b.ops,
	}
}

func (c *nemotronH) mlp(b *builder, p string, size int) *MLP {
	return &MLP{GateUp: b.linear(c.HiddenSize, out{p + "up_proj", size}), Act: ReLU2{b.ops},
		Down: b.linear(size, out{p + "down_proj", c.HiddenSize})}
}

// mixture's router and shared expert read the hidden state, its experts a projection of it where there is a latent
// size.
func (c *nemotronH) mixture(b *builder, p string) *MoE {
	m := &MoE{
		Router: &Router{
			W: b.matrix(p+"gate.weight", c.Experts, c.HiddenSize), Balance: b.buffer(p+"gate.e_score_correction_bias",
				c.Experts),
			Settings: kernels.Router{Sigmoid: true, Norm: c.NormTopK, Epsilon: 1e-20, Scale: c.Scale},
		},
		TopK: c.ExpertsPerToken,
	}
	if c.RouteGroups > 1 {
		m.Router.Settings.Groups, m.Router.Settings.TopGroups = c.RouteGroups, c.TopGroups
	}
	width := c.HiddenSize
	if c.LatentSize > 0 {
		width = c.LatentSize
		m.Into, m.OutOf = b.linear(c.HiddenSize, out{p + "fc1_latent_proj", width}),
			b.linear(width, out{p + "fc2_latent_proj", c.HiddenSize})
	}
	name := func(module string) func(e, _ int) string {
		return func(e, _ int) string { return fmt.Sprintf("%sexperts.%d.%s", p, e, module) }
	}
	m.Experts = &MLP{
		GateUp: b.experts(c.Experts, width, p+"experts.up_proj", []int{c.ExpertSize}, name("up_proj")),
		Act:    ReLU2{b.ops},
		Down:   b.experts(c.Experts, c.ExpertSize, p+"experts.down_proj", []int{width}, name("down_proj")),
	}
	m.Shared = c.mlp(b, p+"shared_experts.", c.SharedSize)
	return m
}

// withStepFloor is a config.json whose time_step_limit is what transformers 5.17 takes in its place, whatever it says:
// from time_step_min, which was meant for the initialisation of steps, to infinity. The model's own code and vLLM take
// time_step_limit. Smaller steps occur in trained models, so that the two compute other logits.
func withStepFloor(config []byte) ([]byte, error) {
	var c struct {
		Kind string  `json:"model_type"`
		Min  float64 `json:"time_step_min"`
	}
	c.Min = defaultStepMin
	plain := pyjson.Plain(config)
	if err := json.Unmarshal(plain, &c); err != nil {
		return nil, pyjson.Place(plain, err)
	}
	if c.Kind != "nemotron_h" {
		return nil, fmt.Errorf("a floor of time steps is for nemotron_h, and this is a %s model: remove it", c.Kind)
	}
	return checkpoint.EditConfig(config, func(fields map[string]any) {
		fields["time_step_limit"] = []any{c.Min, map[string]string{"__float__": "Infinity"}}
	})
}
