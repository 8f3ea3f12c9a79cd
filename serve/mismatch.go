package serve

import (
	"fmt"
	"math"
	"slices"

	"lockstep/optim"
)

// Bounds are the limits that objectives put on the importance ratio of a token, the ratio of its probabilities by the
// training forward and by the rollout.
type Bounds struct {
	ClipLow  float64 `json:"clip_low"` // of PPO, which clips the ratio to [1-ClipLow, 1+ClipHigh]
	ClipHigh float64 `json:"clip_high"`
	Cap      float64 `json:"cap"` // of truncated importance sampling, the largest ratio
}

// Mismatch compares the log-probabilities q of the rollout with p of the training forward on the same tokens. The
// importance ratio of a token is e^(p-q).
type Mismatch struct {
	Tokens int `json:"tokens"`
	Equal  int `json:"equal"` // tokens with bit-identical p and q

	// Estimates of KL(rollout || training) in nats, if the rollout sampled the tokens (Schulman, "Approximating KL
	// Divergence", 2020).
	K1 float64 `json:"k1"` // mean of q - p
	K3 float64 `json:"k3"` // mean of e^(p-q) - 1 - (p-q)

	Mean        float64    `json:"mean_difference"` // of |p - q|
	Percentiles [4]float64 `json:"percentiles"`     // 50, 90, 99 and 99.9 of |p - q|
	Max         float64    `json:"max_difference"`

	// Fraction of tokens with a ratio above 1+ClipHigh. PPO clips them if the advantage is positive.
	ClippedAbove float64 `json:"clipped_above"`
	ClippedBelow float64 `json:"clipped_below"` // below 1-ClipLow; PPO clips them if the advantage is negative
	Capped       float64 `json:"capped"`        // above Cap
}

var percentiles = [4]float64{0.5, 0.9, 0.99, 0.999}

// Validate rejects bounds that no objective has.
func (b Bounds) Validate() error {
	if !(b.ClipLow >= 0 && b.ClipLow <= 1 && b.ClipHigh >= 0 && b.Cap > 0) {
		return fmt.Errorf("clip low %g, clip high %g, cap %g: want 0 to 1, 0 or more, above 0", b.ClipLow, b.ClipHigh,
			b.Cap)
	}
	return nil
}

// NewMismatch compares log-probabilities in float64. A percentile is the least difference that this fraction of the
// tokens does not exceed.
func NewMismatch(training, rollout []float32, b Bounds) Mismatch {
	m := Mismatch{Tokens: len(training)}
	if m.Tokens == 0 {
		return m
	}
	var sums optim.Divergence
	sums.Add(optim.Rows{Targets: make([]int32, m.Tokens), LogProb: training, Rollout: rollout})
	n := float64(m.Tokens)
	m.Equal, m.K1, m.K3, m.Mean, m.Max = m.Tokens-sums.Differ, sums.K1(), sums.K3(), sums.Mean(), sums.Largest
	differences := make([]float64, m.Tokens)
	for i, p := range training {
		d := float64(p) - float64(rollout[i])
		differences[i] = math.Abs(d)
		ratio := math.Exp(d)
		m.ClippedAbove += fraction(ratio > 1+b.ClipHigh, n)
		m.ClippedBelow += fraction(ratio < 1-b.ClipLow, n)
		m.Capped += fraction(ratio > b.Cap, n)
	}
	slices.Sort(differences)
	for i, t := range percentiles {
		m.Percentiles[i] = differences[max(0, int(math.Ceil(t*n))-1)]
	}
	return m
}

func fraction(of bool, n float64) float64 {
	if of {
		return 1 / n
	}
	return 0
}
