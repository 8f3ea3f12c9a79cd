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
	for _, b := range t.LogProbs(batch.Packs) {
		optim.SFT{}.Measure(&sums, b.Rows)
	}
	return batch.Scale * sums.Loss
}

// LogProbs computes the log-probabilities of the targets of packs on all ranks, each pack as one batch without
// gradients. They are in Rows.LogProb of the results.
func (t *Trainer) LogProbs(packs [][]Sample) []*Batch {
	batches := make([]*Batch, len(packs))
	t.eachRank(func(r *parallel.Rank, m *model.Model) {
		for first := 0; first < len(packs); first += r.Size {
			switch i := first + r.ID; {
			case i < len(packs):
				batches[i] = LogProbs(r, m, packs[i:i+1])
			case m.ExpertParallel():
				LogProbs(r, m, idlePack())
			}
		}
	})
	return batches
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

// EachLogProb computes the log-probabilities of the targets of samples on all ranks, packed into batches of at most
// packRows rows. It calls visit with those of sample i, [T], once for each sample, in the order of packs.
func (t *Trainer) EachLogProb(packRows int, samples []Sample, visit func(i int, logprob []float32)) {
	eachLogProb(packRows, samples, t.LogProbs, visit)
}

// EachLogProb is [Trainer.EachLogProb] under any model, on one rank.
func EachLogProb(r *parallel.Rank, m *model.Model, packRows int, samples []Sample,
	visit func(i int, logprob []float32)) {
	eachLogProb(packRows, samples, func(packs [][]Sample) (batches []*Batch) {
		for i := range packs {
			batches = append(batches, LogProbs(r, m, packs[i:i+1]))
		}
		return batches
	}, visit)
}

func eachLogProb(packRows int, samples []Sample, logProbs func(packs [][]Sample) []*Batch,
	visit func(i int, logprob []float32)) {
	order := make([]int, len(samples))
	for i := range order {
		order[i] = i
	}
	list := data.FirstFit(order, func(i int) int { return len(samples[i].IDs) }, packRows)
	packs := make([][]Sample, len(list))
	for n, p := range list {
		for _, i := range p.Samples {
			packs[n] = append(packs[n], samples[i])
		}
	}
	for n, b := range logProbs(packs) {
		for k, i := range list[n].Samples {
			visit(i, b.Of(k, b.Rows.LogProb))
		}
	}
}
