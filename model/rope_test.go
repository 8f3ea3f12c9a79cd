package model

import (
	"math"
	"testing"
)

func near64(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// Llama 3.3: pair 28 keeps its frequency, 29 is the first with another, and from 35 on all have an eighth.
func TestLlama3Scaling(t *testing.T) {
	c, err := ropeFields{Theta: 5e5, Scaling: &ropeDict{Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4,
		Original: 8192}}.resolve(131072, 128)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		plain := math.Pow(5e5, -float64(i)/64)
		ratio := c.scaling.frequency(i, c.dim, c.theta) / plain
		switch {
		case i <= 28:
			near64(t, "the ratio of a fast pair", ratio, 1, 0)
		case i <= 34:
			if ratio >= 1 || ratio <= 0.125 {
				t.Errorf("pair %d has %v times the frequency, want a mix", i, ratio)
			}
		default:
			near64(t, "the ratio of a slow pair", ratio, 0.125, 1e-16)
		}
	}
	near64(t, "the multiplier", c.scaling.attention(), 1, 0)
}

func TestYarn(t *testing.T) {
	exact := false
	for _, c := range []struct {
		name       string
		dict       ropeDict
		theta      float64
		lo, hi     float64
		multiplier float64
	}{
		{"gpt-oss", ropeDict{Type: "yarn", Factor: 32, Original: 4096, Truncate: &exact}, 150000, 8.0928, 17.398,
			1.346574},
		{"kimi k2, a step", ropeDict{OldType: "yarn", Factor: 32, Original: 4096, BetaFast: 1, BetaSlow: 1, MScale: 1,
			MScaleAll: 1}, 5e4, 19, 20, 1},
		{"kimi k2.5", ropeDict{Type: "yarn", Factor: 64, Original: 4096, BetaFast: 32, BetaSlow: 1, MScale: 1,
			MScaleAll: 1}, 5e4, 8, 20, 1},
		{"a factor of attention", ropeDict{Type: "yarn", Factor: 4, Original: 4096, Attention: &[]float64{0.5}[0]}, 5e4,
			8, 20, 0.5},
	} {
		r, err := ropeFields{Theta: c.theta, Scaling: &c.dict}.resolve(131072, 64)
		if err != nil {
			t.Fatal(err)
		}
		lo, hi := r.scaling.ramp(r.dim, r.theta)
		near64(t, c.name+": the first mixed pair", lo, c.lo, 1e-3)
		near64(t, c.name+": the last mixed pair", hi, c.hi, 1e-3)
		near64(t, c.name+": the multiplier", r.scaling.attention(), c.multiplier, 1e-6)
		near64(t, c.name+": the slowest pair", r.scaling.frequency(31, 64, c.theta)*c.dict.Factor,
			math.Pow(c.theta, -31./32), 1e-12)
	}
}

// Which spelling wins: a theta or factor inside a dict over one outside, rope_scaling over rope_parameters.
func TestRopeSpellings(t *testing.T) {
	for _, c := range []struct {
		fields ropeFields
		theta  float64
		dim    int
	}{
		{ropeFields{}, 10000, 64},
		{ropeFields{Theta: 7, Partial: 0.5}, 7, 32},
		{ropeFields{Theta: 7, Partial: 0.5, Parameters: &ropeDict{Theta: 8, Partial: 0.25}}, 8, 16},
		{ropeFields{Theta: 7, Parameters: &ropeDict{Theta: 8}, Scaling: &ropeDict{Type: "default"}}, 7, 64},
	} {
		r, err := c.fields.resolve(100, 64)
		if err != nil || r.theta != c.theta || r.dim != c.dim || r.headDim != 64 {
			t.Errorf("%+v: %+v, %v", c.fields, r, err)
		}
	}
	for _, f := range []ropeFields{{Partial: 0.01}, {Partial: 2}, {Scaling: &ropeDict{Type: "dynamic"}},
		{Scaling: &ropeDict{Type: "yarn"}}, {Scaling: &ropeDict{Type: "llama3", Factor: 8}}} {
		if _, err := f.resolve(100, 64); err == nil {
			t.Errorf("%+v is taken", f)
		}
	}
}

// The pairs between which yarn mixes are pairs that there are, as in transformers: from 0, to dim - 1.
func TestYarnRampIsClipped(t *testing.T) {
	for _, c := range []struct {
		y      ropeScaling
		theta  float64
		lo, hi float64
	}{
		// fewer rotations than beta_fast everywhere
		{ropeScaling{original: 100, betaFast: 32, betaSlow: 1}, 1e4, 0, 10},
		{ropeScaling{original: 4096, betaFast: 600, betaSlow: 1}, 5, 1, 63}, // more rotations than beta_slow everywhere
		{ropeScaling{original: 4096, betaFast: 600, betaSlow: 1, exact: true}, 5, 1.64946, 63},
	} {
		lo, hi := c.y.ramp(64, c.theta)
		near64(t, "the first mixed pair", lo, c.lo, 1e-3)
		near64(t, "the last mixed pair", hi, c.hi, 1e-3)
	}
}
