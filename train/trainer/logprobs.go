package trainer

import (
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// EvalLoss returns the cross entropy of packs, nats, as the mean over their targets. It computes no gradients.
func (t *Trainer) EvalLoss(packs [][]data.Sample) float64 {
	var sums optim.Measures
	batch := Supervised(packs)
	for _, pack := range batch.Packs {
		optim.SFT{}.Measure(&sums, LogProbs(t.Rank, t.Model, [][]Sample{pack}).Rows)
	}
	return batch.Scale * sums.Loss
}

// LogProbs computes the log-probabilities of the targets of packs under a model, as one batch without gradients. They
// are in Rows.LogProb of the result.
func LogProbs(r *parallel.Rank, m *model.Model, packs [][]Sample) *Batch {
	defer r.Stack.Release(r.Stack.Mark())
	b := NewBatch(packs, r.Dev.Definition().Segment)
	on := model.NewBatch(r, b.IDs, b.Layout, nil)
	x := m.Forward(r, on, nil)
	logprob := r.Stack.New(kernels.F32, 1, len(b.IDs))
	m.Head.LogProb(r, logprob, x, b.targets(r), on)
	b.Rows.LogProb = parallel.Download[float32](r, logprob)
	return b
}

// EachLogProb computes the log-probabilities of the targets of samples under a model, packed into batches of at most
// packRows rows. It calls visit with those of sample i, [T], once for each sample, in the order of packs.
func EachLogProb(r *parallel.Rank, m *model.Model, packRows int, samples []Sample,
	visit func(i int, logprob []float32)) {
	order := make([]int, len(samples))
	for i := range order {
		order[i] = i
	}
	for _, p := range data.FirstFit(order, func(i int) int { return len(samples[i].IDs) }, packRows) {
		var pack []Sample
		for _, i := range p.Samples {
			pack = append(pack, samples[i])
		}
		b := LogProbs(r, m, [][]Sample{pack})
		for k, i := range p.Samples {
			visit(i, b.Of(k, b.Rows.LogProb))
		}
	}
}
