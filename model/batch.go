package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Batch is the rows of one forward: token ids with their positions, how rows form sequences, and the cache where there is one.
// It lives on the rank's stack.
type Batch struct {
	IDs       kernels.Tensor // int32 [T]
	Positions kernels.Tensor // int32 [T]
	Layout    *kernels.Layout
	Packs     *kernels.Groups // the rows of each pack: the groups of dense weight gradients
	Cache     *Cache          // nil: keys are the batch's own rows
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
		Packs:     &kernels.Groups{Offsets: parallel.Upload(r, l.Packs), Count: 1, Packs: len(l.Packs) - 1},
		Cache:     cache,
	}
}

// Rows is T.
func (b *Batch) Rows() int { return b.IDs.Cols }
