package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Batch is the rows of one forward: token ids with their positions, how rows form sequences, and the cache where there
// is one. It lives on the rank's stack.
type Batch struct {
	IDs       kernels.Tensor // int32 [T]
	Positions kernels.Tensor // int32 [T]
	Layout    *kernels.Layout
	// The rows of each segment: those of dense weight gradients. They are one group of several segments, or groups of a
	// segment each, where each has gradients of its own.
	Segments *kernels.Groups
	Cache    *Cache   // nil: keys are the batch's own rows
	Context  *Context // of a batch whose sequences go on at other ranks; nil: all their rows are here
	// by block: the keys that its indexer selected, int32 [T, TopK]; nil: none, attention reads all keys
	Selected    []kernels.Tensor
	IndexerLoss *IndexerLoss // nil: indexers are frozen (see [Model.NewIndexerLoss])
	Dropout     *Dropout     // of adapters, in a training step: see [Model.DropoutAt]; nil: none
	Idle        bool         // of expert parallel: the rank computes for the others alone, and has no gradients

	// Of a mixture that is computed again, the last of its block: the gradient of its output, [T, H].
	again *MoE
	dout  kernels.Tensor
}

// Pass is a batch on its way through a model.
type Pass struct {
	*Batch
	X     kernels.Tensor // [T, H]: the input of the next block
	D     kernels.Tensor // the gradient of X; of training
	Saved *Saved         // what Forward keeps; nil: nothing

	// Of a training step.
	Place   Place          // of a micro-batch of several ranks; zero otherwise
	LogProb kernels.Tensor // F32 [1, T]: of the targets, written
	Targets Targets
	Loss    Loss
}

// Share is micro-batches of a step that a rank takes through the model together: each block computes all of them before
// the next block does, forward and backward, so that its weights come once from where they are. Gradients of a weight
// are summed in the order of passes; idle passes are last.
type Share struct {
	Passes []*Pass
	Place  Place // of several ranks, among the shares of the step; zero otherwise
	// Shares of the step have several passes each, which follow one another.
	Several bool
	// They have, and passes i of all shares follow one another: those of ranks that are together at a block.
	Dealt bool
	parts gradientParts
}

// idle tells whether the rank computes for the others alone.
func (s *Share) idle() bool { return s.Passes[0].Idle }

// longest is the largest number of keys that a row of the batch reads, or of the other ranks that have it.
func (b *Batch) longest() (n int) {
	for _, s := range b.sequences().Spans {
		n = max(n, s.Pos+s.Rows)
	}
	return n
}

// Prepare makes room on the rank's stack for the keys that indexers select, which later blocks read too, and for the
// targets of indexers. [Model.Forward] calls it. Call it before the first of several stages.
func (b *Batch) Prepare(r *parallel.Rank, m *Model) {
	b.Selected = make([]kernels.Tensor, len(m.Blocks))
	longest := b.longest()
	keys := longest
	for _, n := range m.indexers {
		if n.Selects && longest > n.Shape.TopK {
			b.Selected[n.Block] = r.Stack.New(kernels.I32, b.Rows(), n.Shape.TopK)
			keys = n.Shape.TopK
		}
	}
	if b.IndexerLoss != nil {
		b.IndexerLoss.prepare(r, b, keys)
	}
}

// NewBatch uploads ids laid out by l; cache nil means a packed batch without one.
func NewBatch(r *parallel.Rank, ids []int32, l *kernels.Layout, cache *Cache) *Batch {
	positions := make([]int32, len(ids))
	for _, s := range l.Spans {
		for i := range s.Rows {
			positions[s.Row+i] = int32(s.Pos + i)
		}
	}
	return &Batch{
		IDs:       parallel.Upload(r, ids),
		Positions: parallel.Upload(r, positions),
		Layout:    l,
		Segments:  &kernels.Groups{Offsets: parallel.Upload(r, l.Segments), Count: 1, Segments: len(l.Segments) - 1},
		Cache:     cache,
	}
}

// segmentOf is rows that begin with their batch as one segment: a whole one, or a part of one whose sum goes on through
// several calls.
func segmentOf(r *parallel.Rank, rows int, goesOn bool) *kernels.Groups {
	return &kernels.Groups{Offsets: parallel.Upload(r, []int32{0, int32(rows)}), Count: 1, Segments: 1, Chain: goesOn}
}

// Rows is T.
func (b *Batch) Rows() int { return b.IDs.Cols }

// apart tells whether each segment has gradients of its own.
func (b *Batch) apart() bool { return b.Segments.Count > 1 }

// segmentsOf is the rows of experts for their weight gradients: where each segment has gradients of its own, those of
// an expert lie one behind the other.
func (b *Batch) segmentsOf(experts *kernels.Groups) *kernels.Groups {
	if !b.apart() {
		return experts
	}
	return &kernels.Groups{Offsets: experts.Offsets, Count: experts.Count * experts.Segments, Segments: 1}
}

// eachSegment visits the rows of each segment.
func (b *Batch) eachSegment(visit func(i, from, to int)) {
	segments := b.Layout.Segments
	for i, from := range segments[:len(segments)-1] {
		visit(i, int(from), int(segments[i+1]))
	}
}

// gradient is what segment i is added to, of the gradient of a matrix.
func (b *Batch) gradient(grad kernels.Tensor, i int) kernels.Tensor {
	if b.apart() {
		return grad.Group(i)
	}
	return grad
}
