package model

import (
	"fmt"
	"math"

	"lockstep/kernels"
)

// ropeConfig is what a family found about rotary positions.
type ropeConfig struct {
	dim     int // columns of a head that turn
	theta   float64
	scaling ropeScaling
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

// resolve is what the fields say of heads of which dim columns turn, in a model of so many positions.
func (f ropeFields) resolve(positions, dim int) (ropeConfig, error) {
	c := ropeConfig{dim: dim, theta: 10000}
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

// ropeScaling stretches rotary positions by YaRN (Peng et al., arXiv 2309.00071) when Factor is above 1.
type ropeScaling struct {
	Factor             float64
	Original           float64 // trained positions
	BetaFast, BetaSlow float64
}

// rope is the tables of cos and sin of position * frequency for every position of the model, in float64, rounded once. Layers of the same
// settings share them.
func (b *builder) rope(c ropeConfig) kernels.Rope {
	if rope, ok := b.ropes[c]; ok {
		return rope
	}
	half := c.dim / 2
	rope := kernels.Rope{Cos: b.tensor(kernels.F32, 1, b.positions, half), Sin: b.tensor(kernels.F32, 1, b.positions, half)}
	if b.dev != nil {
		cos, sin := c.tables(b.positions)
		writeValues(b.dev, rope.Cos, cos)
		writeValues(b.dev, rope.Sin, sin)
	}
	b.ropes[c] = rope
	return rope
}

func (c ropeConfig) tables(positions int) (cos, sin []float32) {
	half := c.dim / 2
	cos, sin = make([]float32, positions*half), make([]float32, positions*half)
	for i := range half {
		f, scale := c.scaling.frequency(i, c.dim, c.theta)
		for p := range positions {
			s, c := math.Sincos(float64(p) * f)
			cos[p*half+i], sin[p*half+i] = float32(c*scale), float32(s*scale)
		}
	}
	return cos, sin
}

func (y ropeScaling) frequency(i, dim int, theta float64) (f, scale float64) {
	f = math.Pow(theta, -2*float64(i)/float64(dim))
	if y.Factor <= 1 {
		return f, 1
	}
	corr := func(turns float64) float64 {
		return float64(dim) * math.Log(y.Original/(turns*2*math.Pi)) / (2 * math.Log(theta))
	}
	lo := max(math.Floor(corr(y.BetaFast)), 0)
	hi := min(math.Ceil(corr(y.BetaSlow)), float64(dim-1))
	ramp := min(max((float64(i)-lo)/max(hi-lo, 1e-3), 0), 1)
	return float64(f*(1-ramp)) + float64(f/y.Factor*ramp), float64(0.1*math.Log(y.Factor)) + 1
}
