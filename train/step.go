package train

import (
	"math"
	"slices"
	"sync"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// trainer updates one model on one rank.
type trainer struct {
	r         *parallel.Rank
	m         *model.Model
	objective optim.Objective
	opt       optim.AdamW
	schedule  optim.Schedule
	// learning rate of indexers that learn, as a multiple of the model's
	indexers   float64
	microBatch int                                     // packs of one forward and backward
	keep       model.Policy                            // what blocks keep for the backward pass
	observe    func(packs [][]lesson, rows optim.Rows) // is shown the micro-batches of a step, in order; nil: nobody
}

// stepResult is what one optimizer step did.
type stepResult struct {
	optim.Measures         // of the objective, before the update
	Norm           float64 // of the gradient, before clipping; that of the indexers is apart
	IndexerLoss    float64 // of indexers that learn: mean divergence, nats
	IndexerNorm    float64
	LR             float64
	Tokens         int // rows computed
}

// step takes one optimizer step (counted from 1) on packs of lessons. The bits do not depend on how packs are grouped
// into micro-batches. Everything is enqueued before the first result is read, but for objectives that need
// log-probabilities: the device waits for the host once a step.
func (t *trainer) step(step int, packs [][]lesson) stepResult {
	r := t.r
	defer r.Stack.Release(r.Stack.Mark())
	var micros []microBatch
	res := stepResult{LR: t.schedule.At(step), Tokens: rowsOf(packs)}
	for len(packs) > 0 {
		n := min(t.microBatch, len(packs))
		micros = append(micros, t.micro(packs[:n], res.Tokens))
		packs = packs[n:]
	}
	t.m.GatherTied(r)
	own, indexers := t.trained()
	norm, indexerNorm := t.update(own, res.LR, step), t.update(indexers, res.LR*t.indexers, step)
	for _, m := range micros {
		m.rows.LogProb = parallel.Download[float32](r, m.logprob)
		t.objective.Measure(&res.Measures, m.rows)
		if t.observe != nil {
			t.observe(m.packs, m.rows)
		}
		m.diverge(r, &res.IndexerLoss)
	}
	res.IndexerLoss /= float64(max(res.Tokens, 1))
	res.Norm, res.IndexerNorm = norm(), indexerNorm()
	return res
}

// microBatch is what is left of one: log-probabilities F32 [1, T] on the rank's stack, and what the objective knows of
// their rows.
type microBatch struct {
	packs    [][]lesson
	logprob  kernels.Tensor
	rows     optim.Rows
	indexers *model.IndexLesson // nil: they are frozen
}

// update takes the optimizer's step on weights, if there are any, and gives the gradient's norm once it is asked for.
func (t *trainer) update(ws []optim.Weights, lr float64, step int) (norm func() float64) {
	if len(ws) == 0 {
		return func() float64 { return 0 }
	}
	n := t.opt.Step(t.r, ws, lr, step)
	return func() float64 { return float64(parallel.Download[float32](t.r, n)[0]) }
}

// largest takes the largest step that so many packs of at most so many rows can make, on a rank whose device counts.
// One micro-batch stands for all: of the others it keeps what the step does. Cross entropy stands for every objective:
// where one passes the vocabulary twice, the first pass takes no more than the second.
func (t *trainer) largest(packs, rows int) {
	r, micro := t.r, min(packs, t.microBatch)
	defer r.Stack.Release(r.Stack.Mark())
	for range (packs+micro-1)/micro - 1 {
		r.Stack.New(kernels.F32, 1, micro*rows)
		t.m.NewLesson(r, micro*rows, packs*rows)
	}
	plain := *t
	plain.objective = optim.SFT{}
	plain.micro(lessons(slices.Repeat([][]data.Sample{t.full(rows)}, micro)), packs*rows)
	t.m.GatherTied(r)
	own, indexers := t.trained()
	t.update(own, 0, 1)
	t.update(indexers, 0, 1)
}

// full is a pack of so many rows: samples of the model's length, one after the other.
func (t *trainer) full(rows int) (pack []data.Sample) {
	for left := rows; left > 0; {
		ids := make([]int32, min(left, t.m.MaxLength))
		pack = append(pack, data.Sample{IDs: ids, Targets: ids})
		left -= len(ids)
	}
	return pack
}

// notFinite names the first parameter, in the order of the graph, whose gradient is not finite.
func (t *trainer) notFinite() string {
	for i, p := range t.m.Trained() {
		if n := optim.GradNorm(t.r, weights(t.m.Trained()[i:i+1])); math.IsNaN(n) || math.IsInf(n, 0) {
			return p.Name
		}
	}
	return "the loss"
}

// micro is the forward and backward of some packs as one batch, in a step of so many rows.
func (t *trainer) micro(packs [][]lesson, stepRows int) microBatch {
	r := t.r
	ids, rows, layout := assemble(packs)
	logprob, learns := r.Stack.New(kernels.F32, 1, len(ids)), t.m.NewLesson(r, len(ids), stepRows)
	defer r.Stack.Release(r.Stack.Mark())
	b := model.NewBatch(r, ids, layout, nil)
	b.Lesson = learns
	t.m.Step(r, b, logprob, targets(r, packs, rows), t.loss(logprob, rows), t.keep)
	return microBatch{packs, logprob, rows, learns}
}

// loss gives the model the objective's derivatives as soon as what they need is known.
func (t *trainer) loss(logprob kernels.Tensor, rows optim.Rows) model.Loss {
	r := t.r
	known := func(from, to int) []float32 { return parallel.Download[float32](r, logprob.ColRange(from, to)) }
	derivative := func(rows optim.Rows) []float32 {
		d := make([]float32, len(rows.Targets))
		t.objective.Derivative(d, rows)
		return d
	}
	switch t.objective.Reach() {
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

// evalLoss is the mean loss over samples, without gradients.
func (t *trainer) evalLoss(packs [][]data.Sample) float64 {
	var sums optim.Measures
	for _, pack := range lessons(packs) {
		optim.SFT{}.Measure(&sums, logprobs(t.r, t.m, [][]lesson{pack}))
	}
	return sums.Loss
}

// logprobs is the rows of packs with their log-probabilities under a model.
func logprobs(r *parallel.Rank, m *model.Model, packs [][]lesson) optim.Rows {
	defer r.Stack.Release(r.Stack.Mark())
	ids, rows, l := assemble(packs)
	b := model.NewBatch(r, ids, l, nil)
	x := m.Forward(r, b, nil)
	logprob := r.Stack.New(kernels.F32, 1, len(ids))
	m.Head.LogProb(r, logprob, x, targets(r, packs, rows), b)
	rows.LogProb = parallel.Download[float32](r, logprob)
	return rows
}

// weights lists what the optimizer updates.
func weights(params []*model.Param) []optim.Weights {
	var ws []optim.Weights
	for _, p := range params {
		ws = append(ws, optim.Weights{W: p.W, Master: p.Master, M: p.M, V: p.V, Grad: p.Grad})
	}
	return ws
}
