package optim

// Custom is any loss, differentiated by the caller: it takes the log-probabilities of a pass without gradients, works
// out the derivative of its loss by each and gives that as the row's Weight. What is measured is the sum of weight *
// log-probability, whose gradient is the loss's; its value is not.
type Custom struct{}

// Reach is ReachNone: the derivatives are given.
func (Custom) Reach() Reach { return ReachNone }

// Derivative is the weight.
func (Custom) Derivative(d []float32, rows Rows) {
	for i, t := range rows.Targets {
		d[i] = 0
		if t >= 0 {
			d[i] = rows.Weight[i]
		}
	}
}

// Measure adds weight * log-probability.
func (Custom) Measure(m *Measures, rows Rows) {
	for i, t := range rows.Targets {
		if t >= 0 {
			m.Targets++
			m.Loss += float64(float64(rows.LogProb[i]) * float64(rows.Weight[i]))
		}
	}
}
