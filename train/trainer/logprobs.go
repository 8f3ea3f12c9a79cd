package trainer

import (
	"slices"

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
func (t *Trainer) LogProbs(packs [][]Sample) (batches []*Batch) {
	segment := t.Rank.Dev.Definition().Segment
	micros := slices.Collect(slices.Chunk(packs, 1))
	places := dealt(micros, t.Context, segment)
	done := make([]MicroBatch, len(places))
	t.eachRank(func(r *parallel.Rank, m *model.Model) {
		for first := 0; first < len(places); first += r.Size {
			switch i := first + r.ID; {
			case i < len(places) && places[i] != hole:
				done[i].batchPart = NewBatch(micros[places[i].micro], segment).part(places[i])
				done[i].known = done[i].logProbs(r, m)
			case m.ExpertParallel():
				LogProbs(r, m, idlePack())
			}
		}
	})
	for i, p := range places {
		if p != hole && joined(done, places, i) {
			batches = append(batches, done[i].Batch)
		}
	}
	return batches
}

// LogProbs computes the log-probabilities of the targets of packs under a model, as one batch without gradients. They
// are in Rows.LogProb of the result.
func LogProbs(r *parallel.Rank, m *model.Model, packs [][]Sample) *Batch {
	b := NewBatch(packs, r.Dev.Definition().Segment)
	b.Rows.LogProb = b.part(alone).logProbs(r, m)
	return b
}

// logProbs is those of the part's rows.
func (p batchPart) logProbs(r *parallel.Rank, m *model.Model) []float32 {
	defer r.Stack.Release(r.Stack.Mark())
	on := p.upload(r)
	x := m.Forward(r, on, nil)
	logprob := r.Stack.New(kernels.F32, 1, p.rows())
	m.Head.LogProb(r, logprob, x, p.targets(r), on)
	return parallel.Download[float32](r, logprob)
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
