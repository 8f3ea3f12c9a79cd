package serve

import (
	"fmt"
	"math"
	"slices"

	"lockstep/optim"
)

// Bounds are those by which objectives treat a token whose log-probability differs between the rollout and the training
// forward.
type Bounds struct {
	ClipLow  float64 `json:"clip_low"` // of PPO: the ratio is held in [1-ClipLow, 1+ClipHigh]
	ClipHigh float64 `json:"clip_high"`
	Cap      float64 `json:"cap"` // of truncated importance sampling: the ratio is held at most here
}

// Mismatch says how far two forwards are apart on the same tokens, by the log-probabilities q that the rollout gave and
// p that the training forward gives. The ratio of a token is e^(p-q).
type Mismatch struct {
	Tokens int `json:"tokens"`
	Equal  int `json:"equal"` // p = q on every bit

	// Estimates of KL(rollout || training), where the tokens are samples of the rollout (Schulman, "Approximating KL
	// Divergence", 2020).
	K1 float64 `json:"k1"` // mean of q - p
	K3 float64 `json:"k3"` // mean of e^(p-q) - 1 - (p-q)

	Mean  float64    `json:"mean_difference"` // of |p - q|
	Tails [4]float64 `json:"percentiles"`     // 50, 90, 99 and 99.9 of |p - q|
	Max   float64    `json:"max_difference"`

	// share of tokens whose ratio is above 1+ClipHigh: PPO clips them where the advantage is above 0
	Above  float64 `json:"clipped_above"`
	Below  float64 `json:"clipped_below"` // share below 1-ClipLow: PPO clips them where the advantage is below 0
	Capped float64 `json:"capped"`        // share above Cap
}

var tails = [4]float64{0.5, 0.9, 0.99, 0.999}

// Validate reports bounds that no objective has.
func (b Bounds) Validate() error {
	if !(b.ClipLow >= 0 && b.ClipLow <= 1 && b.ClipHigh >= 0 && b.Cap > 0) {
		return fmt.Errorf("clip low %g, clip high %g, cap %g: want 0 to 1, 0 or more, above 0", b.ClipLow, b.ClipHigh,
			b.Cap)
	}
	return nil
}

// NewMismatch compares the log-probabilities of tokens, in float64. A percentile is the least difference that so many
// are not above.
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
		m.Above += share(ratio > 1+b.ClipHigh, n)
		m.Below += share(ratio < 1-b.ClipLow, n)
		m.Capped += share(ratio > b.Cap, n)
	}
	slices.Sort(differences)
	for i, t := range tails {
		m.Tails[i] = differences[max(0, int(math.Ceil(t*n))-1)]
	}
	return m
}

func share(of bool, n float64) float64 {
	if of {
		return 1 / n
	}
	return 0
}
