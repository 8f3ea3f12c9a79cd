package optim

// Objective is a loss over log-probabilities. The trainer calls it with rows as early as [Reach] allows.
type Objective interface {
	// Reach is what must be known before Derivative is called.
	Reach() Reach
	// Derivative fills d, the derivative of the step's loss before its scale (see [Aggregate]) by the log-probability
	// of each row; rows without a target get 0.
	Derivative(d []float32, rows Rows)
	// Measure adds what the rows contribute to the step's loss, before its scale, and to its metrics, in row order.
	Measure(m *Measures, rows Rows)
}

// Reach is how much of a micro-batch a derivative depends on.
type Reach int

const (
	// on no log-probability: known before the forward (cross entropy, given gradients)
	ReachNone Reach = iota
	ReachRow        // on the row's own: computed inside the pass over the vocabulary, some rows at a time
	// on those of whole sequences, or of pairs of them: the vocabulary is passed twice, the model once
	ReachSequence
)

// Rows is the input of an objective: consecutive rows of a micro-batch, a value for each row. For ReachSequence they
// are whole sequences.
type Rows struct {
	Targets []int32   // below 0: no target, the row is ignored
	LogProb []float32 // of the targets under the weights that are trained; nil where none is known yet
	Rollout []float32 // recorded when the targets were sampled; nil: not sampled
	// under the weights before the first update on these rows, by the trainer; nil: Rollout stands for it
	Old       []float32
	Reference []float32 // under the frozen reference; nil: none
	Advantage []float32 // nil: none
	Weight    []float32 // of the row's term in the step's loss, before the step's scale; see Aggregate
	Sequences []int     // first rows of the sequences, and the number of rows at the end
}

// Part is rows [from, to), without the bounds of sequences.
func (r Rows) Part(from, to int) Rows {
	cut := func(v []float32) []float32 {
		if v == nil {
			return nil
		}
		return v[from:to]
	}
	return Rows{
		Targets: r.Targets[from:to], LogProb: cut(r.LogProb), Rollout: cut(r.Rollout), Old: cut(r.Old),
		Reference: cut(r.Reference),
		Advantage: cut(r.Advantage), Weight: cut(r.Weight),
	}
}

// Measures are sums over the rows of a step, in float64.
type Measures struct {
	Loss    float64
	Targets int // rows with a target
	// of them, those whose gradient clipping set to 0; for CISPO, whose weight it limited
	Clipped   int
	Corrected int     // of them, those whose importance weight was cut to its cap or left out by its band
	KL        float64 // estimated divergence from the reference, summed over targets; see kl_estimator

	Pairs     int // of preferences
	Preferred int // of them, those whose chosen answer has the higher reward
	// rewards of the chosen answers, summed over pairs: beta * (log-probability - that under the reference)
	Chosen          float64
	Rejected        float64 // and of the rejected ones; the margin is Chosen - Rejected
	ChosenLogProb   float64 // log-probabilities of the chosen answers, summed over pairs
	RejectedLogProb float64 // and of the rejected ones
}
