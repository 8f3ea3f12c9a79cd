package trainer

import (
	"slices"

	"lockstep/kernels"
	"lockstep/optim"
)

// Batch is packs laid out one after the other, T rows in all. Each sample is a sequence of its own: attention and
// recurrences do not cross from one to the next.
type Batch struct {
	Samples []*Sample       // in the order of rows; sample i has rows Rows.Sequences[i] up to Rows.Sequences[i+1]
	IDs     []int32         // [T]
	Rows    optim.Rows      // what the objective knows of each row; LogProb is nil until it is computed
	Inverse []float32       // [T]: see [Sample]; nil: 1
	Layout  *kernels.Layout // a span for each sample
}

// NewBatch lays packs out, in segments of so many rows (see [kernels.CutSegments]). The batch refers to the samples; it
// copies what the rows need.
func NewBatch(packs [][]Sample, segment int) *Batch {
	b, bounds := &Batch{Layout: &kernels.Layout{}}, []int32{0}
	rows := &b.Rows
	for _, pack := range packs {
		for i := range pack {
			s := &pack[i]
			b.Samples = append(b.Samples, s)
			b.Layout.Spans = append(b.Layout.Spans, kernels.Span{Row: len(b.IDs), Rows: len(s.IDs)})
			rows.Sequences = append(rows.Sequences, len(b.IDs))
			b.IDs = append(b.IDs, s.IDs...)
			b.Inverse = append(b.Inverse, s.Inverse...)
			rows.Targets = append(rows.Targets, s.Targets...)
			rows.Weight = append(rows.Weight, s.Weight...)
			rows.Rollout = append(rows.Rollout, s.Rollout...)
			rows.Old = append(rows.Old, s.Old...)
			rows.Reference = append(rows.Reference, s.Reference...)
			rows.Advantage = append(rows.Advantage, s.Advantage...)
		}
		bounds = append(bounds, int32(len(b.IDs)))
	}
	b.Layout.Segments = kernels.CutSegments(bounds, segment)
	rows.Sequences = append(rows.Sequences, len(b.IDs))
	return b
}

// Of returns the part of values [T] that belongs to sample i.
func (b *Batch) Of(i int, values []float32) []float32 {
	return values[b.Rows.Sequences[i]:b.Rows.Sequences[i+1]]
}

// Fresh returns the rows without the targets that older weights sampled. Recorded and computed log-probabilities of
// those differ because the weights do, and not because the arithmetic does.
func (b *Batch) Fresh() optim.Rows {
	rows := b.Rows
	rows.Targets = slices.Clone(rows.Targets)
	for i, s := range b.Samples {
		for t := range s.Stale {
			rows.Targets[rows.Sequences[i]+t] = -1
		}
	}
	return rows
}
