package optim

import "math"

// Divergence holds what the rollout recorded against what the trainer computes for the same tokens. Both are log-probabilities of tokens that the rollout sampled, so
// means over them estimate KL(rollout || trainer).
type Divergence struct {
	Tokens  int
	Differ  int     // on a bit
	SumK1   float64 // of rollout - trainer
	SumK3   float64 // of e^(trainer-rollout) - 1 - (trainer - rollout)
	SumAbs  float64 // of |difference|
	Largest float64 // |difference|
	SumLogp float64 // of the rollout's log-probabilities
}

// Add takes rows with LogProb and Rollout.
func (d *Divergence) Add(rows Rows) {
	for i, t := range rows.Targets {
		if t < 0 {
			continue
		}
		d.Tokens++
		d.SumLogp += float64(rows.Rollout[i])
		if math.Float32bits(rows.Rollout[i]) == math.Float32bits(rows.LogProb[i]) {
			continue
		}
		d.Differ++
		x := float64(rows.LogProb[i]) - float64(rows.Rollout[i])
		d.SumK1 -= x
		d.SumK3 += math.Expm1(x) - x
		d.SumAbs += math.Abs(x)
		d.Largest = max(d.Largest, math.Abs(x))
	}
}

// K1 is the mean of rollout - trainer, nats.
func (d *Divergence) K1() float64 { return d.SumK1 / float64(max(d.Tokens, 1)) }

// K3 is the estimator that is never negative.
func (d *Divergence) K3() float64 { return d.SumK3 / float64(max(d.Tokens, 1)) }

// Entropy estimates that of the rollout from its own samples: the mean of -log p, nats a token.
func (d *Divergence) Entropy() float64 { return -d.SumLogp / float64(max(d.Tokens, 1)) }
