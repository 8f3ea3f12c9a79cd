package train

import (
	"fmt"
	"math"
	"slices"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// trainer updates one model on one rank.
type trainer struct {
	r          *parallel.Rank
	m          *model.Model
	opt        optim.AdamW
	schedule   optim.Schedule
	microBatch int // packs of one forward and backward
	recompute  bool
}

// stepResult is what one optimizer step did.
type stepResult struct {
	Loss   float64 // mean over the step's targets, before the update
	Norm   float64 // of the gradient, before clipping
	LR     float64
	Tokens int // rows computed
}

// step takes one optimizer step (counted from 1) on packs of samples. The bits do not depend on how packs are grouped into micro-batches. Everything is enqueued
// before the first result is read: the device waits for the host once a step.
func (t *trainer) step(step int, packs [][]data.Sample) stepResult {
	r := t.r
	defer r.Stack.Release(r.Stack.Mark())
	objective := optim.SFT{Targets: targets(packs)}
	var micros []microBatch
	res := stepResult{LR: t.schedule.At(step)}
	for len(packs) > 0 {
		n := min(t.microBatch, len(packs))
		m := t.micro(packs[:n], objective)
		micros = append(micros, m)
		res.Tokens += len(m.targets)
		packs = packs[n:]
	}
	t.m.GatherTied(r)
	norm := t.opt.Step(r, weights(t.m), res.LR, step)
	sum := 0.0
	for _, m := range micros {
		sum = objective.Sum(sum, parallel.Download[float32](r, m.logprob), m.targets)
	}
	res.Loss, res.Norm = objective.Loss(sum), float64(parallel.Download[float32](r, norm)[0])
	return res
}

// microBatch is what is left of one: log-probabilities F32 [1, T] on the rank's stack, and their targets.
type microBatch struct {
	logprob kernels.Tensor
	targets []int32
}

// rehearse runs the largest micro-batch that steps of so many packs of at most so many rows can hold, and forgets it: the memory of every step is taken before the
// first, and a lack of it is known before anything is written.
func (t *trainer) rehearse(packs, rows int) {
	r, micro := t.r, min(packs, t.microBatch)
	defer func() {
		switch p := recover().(type) {
		case nil:
		case kernels.Fault:
			panic(kernels.Fault{Err: fmt.Errorf("a micro-batch of %d rows: %w; a smaller run.micro_batch or data.pack_rows, or run.recompute = true, takes less memory", micro*rows, p.Err)})
		default:
			panic(p)
		}
	}()
	defer r.Stack.Release(r.Stack.Mark())
	var full []data.Sample
	for left := rows; left > 0; {
		ids := make([]int32, min(left, t.m.MaxLength))
		full = append(full, data.Sample{IDs: ids, Targets: ids})
		left -= len(ids)
	}
	for range (packs + micro - 1) / micro { // what a step keeps of each
		r.Stack.New(kernels.F32, 1, micro*rows)
	}
	t.micro(slices.Repeat([][]data.Sample{full}, micro), optim.SFT{Targets: micro * rows})
	t.m.GatherTied(r)
	optim.GradNorm(r, weights(t.m))
	for _, p := range t.m.Trained() {
		r.Dev.Zero(p.Grad)
	}
}

// notFinite names the first parameter, in the order of the graph, whose gradient is not finite.
func (t *trainer) notFinite() string {
	for i, p := range t.m.Trained() {
		if n := optim.GradNorm(t.r, weights(t.m)[i:i+1]); math.IsNaN(n) || math.IsInf(n, 0) {
			return p.Name
		}
	}
	return "the loss"
}

// micro is the forward and backward of some packs as one batch.
func (t *trainer) micro(packs [][]data.Sample, objective optim.SFT) microBatch {
	r := t.r
	ids, want, layout := assemble(packs)
	logprob := r.Stack.New(kernels.F32, 1, len(ids))
	defer r.Stack.Release(r.Stack.Mark())
	b := model.NewBatch(r, ids, layout, nil)
	derivative := make([]float32, len(ids))
	objective.Derivative(derivative, want)
	t.m.Step(r, b, logprob, parallel.Upload(r, want), parallel.Upload(r, derivative), t.recompute)
	return microBatch{logprob, want}
}

// evalLoss is the mean loss over samples, without gradients.
func (t *trainer) evalLoss(packs [][]data.Sample) float64 {
	objective := optim.SFT{Targets: targets(packs)}
	sum := 0.0
	for _, pack := range packs {
		sum = t.score([][]data.Sample{pack}, objective, sum)
	}
	return objective.Loss(sum)
}

func (t *trainer) score(packs [][]data.Sample, objective optim.SFT, sum float64) float64 {
	r := t.r
	defer r.Stack.Release(r.Stack.Mark())
	ids, want, layout := assemble(packs)
	b := model.NewBatch(r, ids, layout, nil)
	x := t.m.Forward(r, b, nil)
	logprob := r.Stack.New(kernels.F32, 1, len(ids))
	t.m.Head.LogProb(r, logprob, x, parallel.Upload(r, want), b)
	return objective.Sum(sum, parallel.Download[float32](r, logprob), want)
}

// assemble lays samples out one after the other, each a sequence of its own.
func assemble(packs [][]data.Sample) (ids, want []int32, l *kernels.Layout) {
	l = &kernels.Layout{Packs: []int32{0}}
	for _, pack := range packs {
		for _, s := range pack {
			l.Spans = append(l.Spans, kernels.Span{Row: len(ids), Rows: len(s.IDs)})
			ids = append(ids, s.IDs...)
			want = append(want, s.Targets...)
		}
		l.Packs = append(l.Packs, int32(len(ids)))
	}
	return ids, want, l
}

func targets(packs [][]data.Sample) (n int) {
	for _, pack := range packs {
		for _, s := range pack {
			for _, t := range s.Targets {
				if t >= 0 {
					n++
				}
			}
		}
	}
	return n
}

// weights lists what the optimizer updates, in the order of the graph.
func weights(m *model.Model) []optim.Weights {
	var ws []optim.Weights
	for _, p := range m.Trained() {
		ws = append(ws, optim.Weights{W: p.W, Master: p.Master, M: p.M, V: p.V, Grad: p.Grad})
	}
	return ws
}
