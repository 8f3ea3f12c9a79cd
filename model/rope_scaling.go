package model

import (
	"fmt"
	"math"
)

// ropeScaling stretches rotary positions for sequences longer than those of the first training. The zero value does
// nothing.
type ropeScaling struct {
	kind     string // "", "yarn" or "llama3"
	factor   float64
	original float64 // trained positions
	// yarn (Peng et al., arXiv 2309.00071): rotations over the trained positions between which frequencies are mixed.
	betaFast, betaSlow float64
	exact              bool    // the mix begins and ends between columns
	multiplier         float64 // of cos and sin
	mscaleAll          float64
	// llama3: wavelengths above original/low are scaled, those below original/high are not.
	low, high float64
}

// yarn reads a dict of type yarn; DeepSeek's mscale and mscale_all_dim replace the multiplier of the paper.
func (d *ropeDict) yarn(positions int) (ropeScaling, error) {
	if d.Factor < 1 {
		return ropeScaling{}, fmt.Errorf("yarn with factor %g: want 1 or more", d.Factor)
	}
	y := ropeScaling{
		kind: "yarn", factor: d.Factor, original: first(d.Original, float64(positions)), betaFast: first(d.BetaFast,
			32), betaSlow: first(d.BetaSlow, 1),
		exact: d.Truncate != nil && !*d.Truncate, mscaleAll: d.MScaleAll,
	}
	switch {
	case d.Attention != nil:
		y.multiplier = *d.Attention
	case d.MScale != 0 && d.MScaleAll != 0:
		y.multiplier = y.mscale(d.MScale) / y.mscale(d.MScaleAll)
	default:
		y.multiplier = y.mscale(1)
	}
	return y, nil
}

func (d *ropeDict) llama3() (ropeScaling, error) {
	if d.Factor < 1 || d.Original <= 0 || d.LowFreq <= 0 || d.HighFreq <= d.LowFreq {
		return ropeScaling{}, fmt.Errorf(
			"rope_type llama3: want factor >= 1, original_max_position_embeddings > 0 and 0 < low_freq_factor < "+
				"high_freq_factor; have %g, %g, %g, %g",
			d.Factor, d.Original, d.LowFreq, d.HighFreq)
	}
	return ropeScaling{kind: "llama3", factor: d.Factor, original: d.Original, low: d.LowFreq, high: d.HighFreq}, nil
}

// mscale is the multiplier of attention for a factor, at strength a.
func (y ropeScaling) mscale(a float64) float64 {
	return float64(0.1*a*math.Log(y.factor)) + 1
}

// attention multiplies cos and sin.
func (y ropeScaling) attention() float64 {
	if y.kind == "yarn" {
		return y.multiplier
	}
	return 1
}

// frequency is the angle of pair i at position 1, of dim rotary columns.
func (y ropeScaling) frequency(i, dim int, theta float64) float64 {
	f := math.Pow(theta, -2*float64(i)/float64(dim))
	switch y.kind {
	case "yarn":
		lo, hi := y.ramp(dim, theta)
		mix := min(max((float64(i)-lo)/max(hi-lo, 1e-3), 0), 1)
		return float64(f*(1-mix)) + float64(f/y.factor*mix)
	case "llama3":
		rotations := y.original * f / (2 * math.Pi)
		mix := min(max((rotations-y.low)/(y.high-y.low), 0), 1)
		return float64(f*mix) + float64(f/y.factor*(1-mix))
	}
	return f
}

// ramp is the pairs between which yarn mixes scaled and unscaled frequencies.
func (y ropeScaling) ramp(dim int, theta float64) (lo, hi float64) {
	corr := func(rotations float64) float64 {
		return float64(dim) * math.Log(y.original/(rotations*2*math.Pi)) / (2 * math.Log(theta))
	}
	lo, hi = corr(y.betaFast), corr(y.betaSlow)
	if !y.exact {
		lo, hi = math.Floor(lo), math.Ceil(hi)
	}
	return max(lo, 0), min(hi, float64(dim-1))
}
