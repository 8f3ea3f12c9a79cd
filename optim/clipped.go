package optim

import "math"

// Clipped is the clipped surrogate of PPO (Schulman et al., arXiv 1707.06347, eq. 7), which GRPO (arXiv 2402.03300), Dr. GRPO (arXiv 2503.20783) and
// DAPO (arXiv 2503.14476) share; they differ in their bounds, in how advantages are made and in the weights of rows. With r = exp(lp - old) and w the row's weight:
//
//	loss = -w * min(r*A, clip(r, 1-low, 1+high)*A); with dual clip c, where A < 0, -w * max(that min, c*A) (arXiv 1912.09729)
//	d    = -w*A*r inside the bounds; 0 where the min takes the clipped term, which has no gradient
//
// Rows.Old stands before Rows.Rollout as old. Where both are there, the row is weighed by min(exp(old - rollout), cap), the truncated importance weight.
type Clipped struct {
	low, high, dual float32 // ratios
	cap             float32
	kl              referenceKL
}

// ClippedSurrogate has complete settings.
func ClippedSurrogate(s Settings) Clipped {
	c := Clipped{low: float32(1 - s.ClipLow), high: float32(1 + s.ClipHigh), dual: float32(math.Inf(1)), cap: float32(s.ImportanceCap), kl: newReferenceKL(s)}
	if s.DualClip > 0 {
		c.dual = float32(s.DualClip)
	}
	return c
}

// PolicyGradient is the policy gradient with importance weights, loss = -w*r*A: the surrogate without bounds. At r = 1 its derivative is that of REINFORCE.
func PolicyGradient(s Settings) Clipped {
	inf := float32(math.Inf(1))
	return Clipped{low: -inf, high: inf, dual: inf, cap: float32(s.ImportanceCap), kl: newReferenceKL(s)}
}

// Reach is ReachRow.
func (Clipped) Reach() Reach { return ReachRow }

// clipped tells whether the bounds take the row's gradient away.
func (c Clipped) clipped(r, a float32) bool {
	return a > 0 && r > c.high || a < 0 && (r < c.low || r > c.dual)
}

// Derivative is that of the loss.
func (c Clipped) Derivative(d []float32, rows Rows) {
	for i, t := range rows.Targets {
		d[i] = 0
		if t < 0 {
			continue
		}
		r, a := rows.ratio(i), rows.Advantage[i]
		if !c.clipped(r, a) {
			d[i] = -float32(float32(rows.Weight[i]*rows.importance(i, c.cap)) * float32(a*r))
		}
		d[i] += c.kl.derivative(rows, i)
	}
}

// Measure adds the loss and counts clipped rows.
func (c Clipped) Measure(m *Measures, rows Rows) {
	for i, t := range rows.Targets {
		if t < 0 {
			continue
		}
		r, a := rows.ratio(i), rows.Advantage[i]
		gain := float64(float32(a * min(max(r, c.low), c.high)))
		gain = min(gain, float64(float32(a*r)))
		if a < 0 {
			gain = max(gain, float64(c.dual)*float64(a))
		}
		m.Targets++
		m.Loss -= float64(float64(rows.Weight[i]*rows.importance(i, c.cap)) * gain)
		m.Loss += c.kl.value(rows, i)
		if c.clipped(r, a) {
			m.Clipped++
		}
	}
}
