package trainer

import (
	"slices"

	"lockstep/data"
	"lockstep/model/checkpoint"
	"lockstep/optim"
)

// Sample is a training sample of T tokens: input ids and targets, with what the objective knows of each row; see
// [optim.Rows]. A list is [T], or nil where it is not known.
type Sample struct {
	data.Sample
	Weight     []float32    // of the row's term in the loss, before [GlobalBatch.Scale]
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

// GlobalBatch is the samples of one optimizer step, laid out in packs. The loss of the step is Scale times the sum of
// its rows' weighted terms. Derivatives by log-probabilities are computed without Scale, by which the optimizer
// multiplies the gradient: they do not depend on what else is in the step.
type GlobalBatch struct {
	Packs [][]Sample
	Scale float64
}

// Supervised makes the global batch of a mean over targets. Targets have their own weights, and Scale is 1 over the sum
// of these, which is added in the order of packs: where all are 1, over the number of targets.
func Supervised(packs [][]data.Sample) GlobalBatch {
	b, sum := GlobalBatch{Packs: make([][]Sample, len(packs)), Scale: 1}, 0.0
	for i, pack := range packs {
		for _, s := range pack {
			sum += s.Weight()
			own := Sample{Sample: s, Weight: s.Weights}
			if own.Weight == nil {
				own = own.WithWeight(1)
			}
			b.Packs[i] = append(b.Packs[i], own)
		}
	}
	if sum != 0 { // else there is no target: nothing is divided
		b.Scale = 1 / sum
	}
	return b
}

// Pack makes the global batch of samples in packs of at most packRows rows, first fit, and gives each row its weight by
// [optim.Aggregate], of answers of at most longest tokens. Every unit samples in sequence (2: a pair) share a pack.
// Derivatives that samples bring are those of the step's loss: then Scale is 1.
func Pack(batch []Sample, unit int, aggregate string, longest, packRows int) (b GlobalBatch) {
	var order []int
	lengths, given := make([]int, len(batch)), false
	for i := range batch {
		lengths[i] = batch[i].Learned()
		given = given || batch[i].Derivative != nil
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
	weights, scale := optim.Aggregate(aggregate, lengths, longest)
	b.Scale = scale
	if given {
		b.Scale = 1
	}
	packs := data.FirstFit(order, rows, packRows)
	b.Packs = make([][]Sample, len(packs))
	checkpoint.InParallel(len(packs), 1, func(from, to int) { // devices wait
		for p := from; p < to; p++ {
			samples := make([]Sample, 0, len(packs[p].Samples)*unit)
			for _, first := range packs[p].Samples {
				for i, s := range batch[first : first+unit] {
					samples = append(samples, s.WithWeight(weights[first+i]))
				}
			}
			b.Packs[p] = samples
		}
	})
	return b
}

// WithWeight returns the sample with the same weight for each of its rows, or with its Derivative where it has one.
func (s Sample) WithWeight(weight float32) Sample {
	if s.Weight = s.Derivative; s.Weight == nil {
		s.Weight = slices.Repeat([]float32{weight}, len(s.IDs))
	}
	return s
}
