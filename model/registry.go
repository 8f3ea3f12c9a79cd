package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep/kernels"
)

// family reads a config.json and describes the model in a builder.
type family func(config []byte, b *builder) (*Model, ropeConfig, error)

// families by model_type; a family's file registers itself.
var families = map[string]family{}

// Families lists the model types that can be built, sorted.
func Families() []string { return slices.Sorted(maps.Keys(families)) }

// Options choose what a config.json leaves open.
type Options struct {
	DType     kernels.DType // storage of weights and activations
	MaxLength int           // positions to prepare; 0: the config's max_position_embeddings
}

// Build makes the graph of a config.json on a device, with zero weights: load or initialise them next.
func Build(dev kernels.Device, config []byte, o Options) (*Model, error) {
	if dev.Definition().Dot == kernels.DotTC16 && o.DType != kernels.BF16 {
		return nil, fmt.Errorf("dot mode tc16 multiplies bf16: set the model's dtype to bf16")
	}
	m, rope, err := describe(config, &builder{mem: kernels.NewArena(dev), dtype: o.DType})
	if err != nil {
		return nil, err
	}
	m.MaxLength = rope.positions
	if o.MaxLength > 0 {
		m.MaxLength = min(m.MaxLength, o.MaxLength)
	}
	m.Rope = ropeTables(dev, m.mem, m.MaxLength, rope.dim, rope.theta, rope.scaling)
	return m, nil
}

// Describe is the graph of a config.json with the shapes of its parameters and no memory: to count, not to run.
func Describe(config []byte, dtype kernels.DType) (*Model, error) {
	m, rope, err := describe(config, &builder{dtype: dtype})
	if err != nil {
		return nil, err
	}
	m.MaxLength = rope.positions
	return m, nil
}

func describe(config []byte, b *builder) (*Model, ropeConfig, error) {
	var head struct {
		ModelType   string          `json:"model_type"`
		Initializer *float64        `json:"initializer_range"`
		EOS         json.RawMessage `json:"eos_token_id"`
	}
	fail := func(err error) (*Model, ropeConfig, error) {
		return nil, ropeConfig{}, fmt.Errorf("config.json: %w", err)
	}
	if err := json.Unmarshal(config, &head); err != nil {
		return fail(jsonPlace(config, err))
	}
	build, ok := families[head.ModelType]
	if !ok {
		return fail(fmt.Errorf("model_type %q is not known: want one of %s", head.ModelType, strings.Join(Families(), ", ")))
	}
	eos, err := tokenIDs(head.EOS)
	if err != nil {
		return fail(fmt.Errorf("eos_token_id: %w", err))
	}
	b.std = 0.02
	if head.Initializer != nil {
		b.std = *head.Initializer
	}
	m, rope, err := build(config, b)
	if err != nil {
		return fail(err)
	}
	m.Family, m.DType, m.EOS, m.Config, m.Params, m.mem = head.ModelType, b.dtype, eos, config, b.params, b.mem
	return m, rope, nil
}

// tokenIDs reads null, a number or a list of numbers.
func tokenIDs(raw json.RawMessage) ([]int32, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var one int32
	if json.Unmarshal(raw, &one) == nil {
		return []int32{one}, nil
	}
	var many []int32
	if err := json.Unmarshal(raw, &many); err != nil {
		return nil, fmt.Errorf("%s: want a token id or a list of them", raw)
	}
	return many, nil
}

// jsonPlace adds the line of a JSON syntax error.
func jsonPlace(text []byte, err error) error {
	var offset int64
	switch e := err.(type) {
	case *json.SyntaxError:
		offset = e.Offset
	case *json.UnmarshalTypeError:
		offset = e.Offset
	default:
		return err
	}
	line := 1 + strings.Count(string(text[:min(int(offset), len(text))]), "\n")
	return fmt.Errorf("line %d: %w", line, err)
}

// ropeConfig is what a family found about rotary positions.
type ropeConfig struct {
	positions int // max_position_embeddings
	dim       int
	theta     float64
	scaling   ropeScaling
}

// ropeFields are the spellings of rotary settings in config.json: top-level rope_theta with rope_scaling, or one dict rope_parameters.
// A theta inside a dict wins; a rope_scaling replaces rope_parameters.
type ropeFields struct {
	Theta      *float64  `json:"rope_theta"`
	Parameters *ropeDict `json:"rope_parameters"`
	Scaling    *ropeDict `json:"rope_scaling"`
}

type ropeDict struct {
	Theta    *float64 `json:"rope_theta"`
	Type     string   `json:"rope_type"`
	OldType  string   `json:"type"`
	Factor   float64  `json:"factor"`
	Original float64  `json:"original_max_position_embeddings"`
	BetaFast float64  `json:"beta_fast"`
	BetaSlow float64  `json:"beta_slow"`
}

func (f ropeFields) resolve(positions, dim int) (ropeConfig, error) {
	c := ropeConfig{positions: positions, dim: dim, theta: 10000}
	if f.Theta != nil {
		c.theta = *f.Theta
	}
	d := f.Parameters
	if f.Scaling != nil {
		d = f.Scaling
	}
	if d == nil {
		return c, nil
	}
	if d.Theta != nil {
		c.theta = *d.Theta
	}
	kind := d.Type
	if kind == "" {
		kind = d.OldType
	}
	switch kind {
	case "", "default":
		return c, nil
	case "yarn":
		c.scaling = ropeScaling{Factor: d.Factor, Original: d.Original, BetaFast: d.BetaFast, BetaSlow: d.BetaSlow}
		if c.scaling.Original == 0 {
			c.scaling.Original = float64(positions)
		}
		if c.scaling.BetaFast == 0 {
			c.scaling.BetaFast = 32
		}
		if c.scaling.BetaSlow == 0 {
			c.scaling.BetaSlow = 1
		}
		return c, nil
	}
	return c, fmt.Errorf("rope_type %q: want default or yarn", kind)
}

// Architecture is the class name that config.json gives a family for other tools.
func Architecture(modelType string) string { return architectures[modelType] }

var architectures = map[string]string{"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
