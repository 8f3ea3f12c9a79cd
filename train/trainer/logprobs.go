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
		for first := 0; first < len(places); {
			next := min(first+r.Size*t.passes(), len(places))
			var own []batchPart
			var at []int // the place of each; below 0: none
			for i := first + r.ID; i < next+r.ID; i += r.Size {
				switch {
				case i < next && places[i] != hole:
					own, at = append(own, NewBatch(micros[places[i].micro], segment).part(places[i])), append(at, i)
				case m.ExpertParallel():
					own, at = append(own, NewBatch(idlePack(), segment).part(alone)), append(at, -1)
				}
			}
			for k, known := range logProbs(r, m, own...) {
				if i := at[k]; i >= 0 {
					done[i].batchPart, done[i].known = own[k], known
				}
			}
			first = next
		}
	})
	for i, p := range places {
		if p != hole && joined(done, places, i) {
			batches = append(batches, done[i].Batch)
		}
	}
	return batches
}

// passes is how many packs go through the model together in a forward alone: those that a step has room for.
func (t *Trainer) passes() int {
	if blocks, _ := t.Model.OnHost(); blocks > 0 {
		return max(t.RankPacks, 1)
	}
	return 1
}

// LogProbs computes the log-probabilities of the targets of packs under a model, as one batch without gradients. They
// are in Rows.LogProb of the result.
func LogProbs(r *parallel.Rank, m *model.Model, packs [][]Sample) *Batch {
	b := NewBatch(packs, r.Dev.Definition().Segment)
	b.Rows.LogProb = logProbs(r, m, b.part(alone))[0]
	return b
}

// logProbs is those of the rows of each part, which go through the model together.
func logProbs(r *parallel.Rank, m *model.Model, parts ...batchPart) (list [][]float32) {
	defer r.Stack.Release(r.Stack.Mark())
	var passes []*model.Pass
	for _, p := range parts {
		passes = append(passes, &model.Pass{Batch: p.upload(r), Targets: p.targets(r),
			LogProb: r.Stack.New(kernels.F32, 1, p.rows())})
	}
	m.Score(r, passes...)
	for _, p := range passes {
		list = append(list, parallel.Download[float32](r, p.LogProb))
	}
	return list
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
