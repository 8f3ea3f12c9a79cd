package model

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/parallel"
)

// IndexerStage says what indexers of sparse attention learn: to score keys as attention weighs them, by the divergence
// KL(p || softmax(score)) of each row, p the attention of all heads and of all layers that read the choice
// (DeepSeek-V3.2-Exp report, section 2.1; arXiv 2603.12201, which GLM-5.2's shared choices follow).
type IndexerStage string

const (
	IndexersFrozen IndexerStage = ""
	// IndexersSparse: over the chosen keys, while the model learns from its own loss as ever.
	IndexersSparse IndexerStage = "sparse"
	// IndexersDense: over all keys, and the model reads them all. Nothing but the indexers learns: the start from a
	// model that was trained with dense attention.
	IndexersDense IndexerStage = "dense"
)

// IndexLesson is what the indexers learn from a batch.
type IndexLesson struct {
	Scale float32        // of a row's divergence in the loss
	KL    kernels.Tensor // F32 [indexers, T], nats: written by Backward

	// F32 [T, keys]: what attention gives each key of a row's list; +0 between the layers of two indexers
	target kernels.Tensor
}

// NewLesson is for a batch of some rows of an optimizer step of stepRows, over which the loss is the mean; nil where
// indexers are frozen. KL lies on the rank's stack.
func (m *Model) NewLesson(r *parallel.Rank, rows, stepRows int) *IndexLesson {
	if m.Indexing == IndexersFrozen {
		return nil
	}
	return &IndexLesson{Scale: float32(1 / float64(stepRows)), KL: r.Stack.New(kernels.F32, len(m.indexers), rows)}
}

// prepare makes room for the target.
func (l *IndexLesson) prepare(r *parallel.Rank, b *Batch, keys int) {
	l.target = r.Stack.Zeros(kernels.F32, b.Rows(), keys)
}

// indexTeacher is what a layer keeps whose attention an indexer learns from.
type indexTeacher interface {
	teach(r *parallel.Rank, b *Batch)
}

// teach adds the layer's attention to the target, from which its indexer learns where it is the first of the layers
// that share one. Later layers have been here.
func (s *MLASaved) teach(r *parallel.Rank, b *Batch) {
	a := s.layer
	a.ops.indexing.IndexTarget(b.Lesson.target, s.Q, s.K, s.LSE, s.Picks, b.Layout, a.Shape)
	if a.Index != nil {
		a.Index.Backward(r, s.Picks, b, &s.Index)
	}
}

// teach is Backward of the indexers alone.
func (st Stage) teach(r *parallel.Rank, b *Batch, s *Saved) {
	for i := st.To - 1; i >= st.From; i-- {
		st.model.around(r, i, BackwardPass, func() {
			defer r.Stack.Release(r.Stack.Mark())
			for _, sub := range st.inner(r, i, b, s) {
				if t, ok := sub.Layer.(indexTeacher); ok {
					t.teach(r, b)
				}
			}
		})
	}
}

// IndexerParams is the weights of the indexers that learn.
func (m *Model) IndexerParams() map[*Param]bool {
	out := map[*Param]bool{}
	if m.Indexing == IndexersFrozen {
		return out
	}
	for _, n := range m.indexers {
		for _, p := range n.params() {
			out[p] = true
		}
	}
	return out
}

// setIndexing settles whether the indexers of a new model learn.
func (m *Model) setIndexing(stage IndexerStage) error {
	m.Indexing = stage
	if stage != IndexersFrozen && len(m.indexers) == 0 {
		return fmt.Errorf("model_type %s has no indexers of sparse attention that could learn: leave them frozen",
			m.Family)
	}
	return nil
}
