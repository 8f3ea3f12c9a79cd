package trainer

import (
	"slices"

	"lockstep/data"
	"lockstep/optim"
)

// Sample is a training sample of T tokens: input ids and targets, with what the objective knows of each row; see
// [optim.Rows]. A list is [T], or nil where it is not known.
type Sample struct {
	data.Sample
	Weight     []float32    // of the row's term in the loss
	Rollout    []float32    // log-probability of the target, as the rollout recorded it
	Old        []float32    // log-probability before the first update on the sample
	Reference  []float32    // log-probability under the reference model
	Advantage  []float32    // of the answer that the row belongs to
	Inverse    []float32    // [kernels.Inverse] of the temperature of log-probabilities; nil: 1
	Derivative []float32    // derivative of a loss that was computed elsewhere; takes the place of Weight
	Stale      map[int]bool // rows whose target older weights sampled
}

// CountRows returns the number of rows of packs, padding not counted.
func CountRows(packs [][]Sample) (n int) {
	for _, pack := range packs {
		for _, s := range pack {
			n += len(s.IDs)
		}
	}
	return n
}

// Supervised gives the samples of a step the weights of a mean over targets: each target has its share of the sum of
// all weights of the step, which is added in the order of packs. Where all weights are 1, that is 1 / (number of
// targets).
func Supervised(packs [][]data.Sample) [][]Sample {
	sum := 0.0
	for _, pack := range packs {
		for _, s := range pack {
			sum += s.Weight()
		}
	}
	if sum == 0 {
		sum = 1 // no target: nothing is divided
	}
	out := make([][]Sample, len(packs))
	for i, pack := range packs {
		for _, s := range pack {
			out[i] = append(out[i], Sample{Sample: s}.shared(sum))
		}
	}
	return out
}

// shared returns the sample with the share of each of its targets in a step whose weights have that sum.
func (s Sample) shared(sum float64) Sample {
	if s.Weights == nil {
		return s.WithWeight(float32(1 / sum))
	}
	s.Weight = make([]float32, len(s.Weights))
	for i, w := range s.Weights {
		s.Weight[i] = float32(float64(w) / sum)
	}
	return s
}

// Pack lays the samples of a step out in packs of at most packRows rows, first fit, and gives each row its weight by
// [optim.Aggregate], of answers of at most longest tokens. Every unit samples in sequence (2: a pair) share a pack.
func Pack(batch []Sample, unit int, aggregate string, longest, packRows int) (packs [][]Sample) {
	var order []int
	lengths := make([]int, len(batch))
	for i := range batch {
		lengths[i] = batch[i].Learned()
		if i%unit == 0 {
			order = append(order, i)
		}
	}
	rows := func(first int) (n int) {
		for _, s := range batch[first : first+unit] {
			n += len(s.IDs)
		}
		return n
	}
	weights := optim.Aggregate(aggregate, lengths, longest)
	for _, p := range data.FirstFit(order, rows, packRows) {
		var samples []Sample
		for _, first := range p.Samples {
			for i, s := range batch[first : first+unit] {
				samples = append(samples, s.WithWeight(weights[first+i]))
			}
		}
		packs = append(packs, samples)
	}
	return packs
}

// WithWeight returns the sample with the same weight for each of its rows, or with its Derivative where it has one.
func (s Sample) WithWeight(weight float32) Sample {
	if s.Weight = s.Derivative; s.Weight == nil {
		s.Weight = slices.Repeat([]float32{weight}, len(s.IDs))
	}
	return s
}
