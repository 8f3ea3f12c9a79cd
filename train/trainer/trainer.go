package trainer

import (
	"slices"
	"sync"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// Trainer updates one model on one rank. [New] makes it.
type Trainer struct {
	Rank  *parallel.Rank
	Model *model.Model
	Options
	Observe func(b *Batch) // gets each micro-batch of a step, with its log-probabilities, in order; may be nil
}

// Options are how a trainer updates its model. They may be changed between two steps.
type Options struct {
	Objective   optim.Objective
	Optimizer   optim.AdamW
	Schedule    optim.Schedule // of learning rates
	IndexerRate float64        // learning rate of trained indexers, as a multiple of the model's
	MicroBatch  int            // packs of one forward and backward, at least 1; changes no bit
	Keep        model.Policy   // what blocks keep for the backward pass; nil: everything; changes no bit
}

// New returns a trainer of a model that has memory for training; see [model.Model.TrainAll].
func New(r *parallel.Rank, m *model.Model, o Options) *Trainer {
	return &Trainer{Rank: r, Model: m, Options: o}
}

// StepResult is what one optimizer step measured.
type StepResult struct {
	optim.Measures         // of the objective, before the update
	Norm           float64 // of the gradient without that of the indexers, before clipping
	IndexerLoss    float64 // of trained indexers: mean divergence of a row, nats
	IndexerNorm    float64 // of the indexers' gradient, before clipping
	LR             float64 // learning rate
	Tokens         int     // rows computed
}

// Step takes one optimizer step (counted from 1) on a global batch. No bit depends on how its packs are grouped into
// micro-batches. Everything is enqueued before the first result is read, except for objectives whose derivative needs
// log-probabilities: the host waits for the device once a step.
func (t *Trainer) Step(step int, batch GlobalBatch) StepResult {
	r := t.Rank
	defer r.Stack.Release(r.Stack.Mark())
	var micros []MicroBatch
	res := StepResult{LR: t.Schedule.At(step), Tokens: CountRows(batch.Packs)}
	for packs := range slices.Chunk(batch.Packs, t.MicroBatch) {
		micros = append(micros, t.ForwardBackward(packs))
	}
	t.Model.GatherTied(r)
	own, indexers := t.trained()
	norm := t.update(own, batch.Scale, res.LR, step)
	rowScale := 1 / float64(max(res.Tokens, 1)) // the indexers' loss is a mean over rows
	indexerNorm := t.update(indexers, rowScale, res.LR*t.IndexerRate, step)
	for _, m := range micros {
		m.Rows.LogProb = parallel.Download[float32](r, m.logprob)
		t.Objective.Measure(&res.Measures, m.Rows)
		if t.Observe != nil {
			t.Observe(m.Batch)
		}
		m.diverge(r, &res.IndexerLoss)
	}
	res.Loss *= batch.Scale
	res.IndexerLoss *= rowScale
	res.Norm, res.IndexerNorm = norm(), indexerNorm()
	return res
}

// MicroBatch is what a micro-batch leaves until the end of its step: log-probabilities F32 [1, T] on the rank's stack,
// and what the objective knows of the rows.
type MicroBatch struct {
	*Batch
	logprob  kernels.Tensor
	indexers *model.IndexerLoss // nil: they are frozen
}

// update takes the optimizer's step on weights, whose gradients are to be multiplied by scale. The norm is read when
// norm is called; 0: no weights.
func (t *Trainer) update(ws []optim.Weights, scale, lr float64, step int) (norm func() float64) {
	if len(ws) == 0 {
		return func() float64 { return 0 }
	}
	n := t.Optimizer.Step(t.Rank, ws, scale, lr, step)
	return func() float64 { return float64(parallel.Download[float32](t.Rank, n)[0]) }
}

// ForwardBackward computes some packs of a step as one batch, and adds their gradients to those of the parameters. The
// result lies on the rank's stack.
func (t *Trainer) ForwardBackward(packs [][]Sample) MicroBatch {
	r := t.Rank
	b := NewBatch(packs, r.Dev.Definition().Segment)
	logprob, learns := r.Stack.New(kernels.F32, 1, len(b.IDs)), t.Model.NewIndexerLoss(r, len(b.IDs))
	defer r.Stack.Release(r.Stack.Mark())
	on := model.NewBatch(r, b.IDs, b.Layout, nil)
	on.IndexerLoss = learns
	t.Model.Step(r, on, logprob, b.targets(r), t.loss(logprob, b.Rows), t.Keep)
	return MicroBatch{b, logprob, learns}
}

// loss gives the model the objective's derivatives as soon as what they need is known.
func (t *Trainer) loss(logprob kernels.Tensor, rows optim.Rows) model.Loss {
	r := t.Rank
	known := func(from, to int) []float32 { return parallel.Download[float32](r, logprob.ColRange(from, to)) }
	derivative := func(rows optim.Rows) []float32 {
		d := make([]float32, len(rows.Targets))
		t.Objective.Derivative(d, rows)
		return d
	}
	switch t.Objective.Reach() {
	case optim.ReachNone:
		return model.Loss{Derivative: parallel.Upload(r, derivative(rows)).ColRange}
	case optim.ReachRow:
		return model.Loss{Derivative: func(from, to int) kernels.Tensor {
			part := rows.Part(from, to)
			part.LogProb = known(from, to)
			return parallel.Upload(r, derivative(part))
		}}
	}
	whole := sync.OnceValue(func() []float32 {
		rows.LogProb = known(0, len(rows.Targets))
		return derivative(rows)
	})
	return model.Loss{Ahead: true, Derivative: func(from, to int) kernels.Tensor {
		return parallel.Upload(r, whole()[from:to])
	}}
}

// weights lists what the optimizer updates.
func weights(params []*model.Param) []optim.Weights {
	var ws []optim.Weights
	for _, p := range params {
		ws = append(ws, optim.Weights{W: p.W, Master: p.Master, M: p.M, V: p.V, Grad: p.Grad})
	}
	return ws
}
