package optim

// SFT is next-token cross entropy: loss = -sum of weight * log p(target), with a target's own weight (1 unless the data
// says otherwise). The scale of the step is 1 over the sum of its weights.
type SFT struct{}

// Reach is ReachNone: the derivative is a constant.
func (SFT) Reach() Reach { return ReachNone }

// Derivative is -weight.
func (SFT) Derivative(d []float32, rows Rows) {
	for i, t := range rows.Targets {
		d[i] = 0
		if t >= 0 {
			d[i] = -rows.Weight[i]
		}
	}
}

// Measure adds the cross entropy.
func (SFT) Measure(m *Measures, rows Rows) {
	for i, t := range rows.Targets {
		if t >= 0 {
			m.Targets++
			m.Loss -= float64(float64(rows.LogProb[i]) * float64(rows.Weight[i]))
		}
	}
}
