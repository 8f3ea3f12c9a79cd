package optim

// SFT is next-token cross entropy: loss = -(1/N) sum of log p(target), N the targets of the whole optimizer step, so the
// gradient does not depend on how the step is cut into micro-batches.
type SFT struct{ Targets int }

// Derivative fills d[t], the derivative of the loss by the log-probability of targets[t]; ignored targets (below 0) get 0.
func (o SFT) Derivative(d []float32, targets []int32) {
	g := float32(-1 / float64(o.Targets))
	for i, t := range targets {
		d[i] = 0
		if t >= 0 {
			d[i] = g
		}
	}
}

// Loss is this micro-batch's share of the step's loss, added in row order in float64.
func (o SFT) Loss(logprob []float32, targets []int32) float64 {
	sum := 0.0
	for i, t := range targets {
		if t >= 0 {
			sum -= float64(logprob[i])
		}
	}
	return sum / float64(o.Targets)
}
