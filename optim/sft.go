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

// Sum continues the sum of -log p(target) over a micro-batch, in row order in float64.
func (o SFT) Sum(sum float64, logprob []float32, targets []int32) float64 {
	for i, t := range targets {
		if t >= 0 {
			sum -= float64(logprob[i])
		}
	}
	return sum
}

// Loss is the step's loss from its complete sum.
func (o SFT) Loss(sum float64) float64 { return sum / float64(o.Targets) }
