package model

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/parallel"
)

// IndexerStage says how the indexers of sparse attention are trained: to score keys as attention weighs them, by the
// divergence KL(p || softmax(score)) of each row, p the attention of all heads and of all layers that read the
// selection (DeepSeek-V3.2-Exp report, section 2.1; arXiv 2603.12201, as in GLM-5.2, whose layers share selections).
type IndexerStage string

const (
	IndexersFrozen IndexerStage = ""
	// IndexersSparse: over the selected keys, while the model is trained by its own loss.
	IndexersSparse IndexerStage = "sparse"
	// IndexersDense: over all keys, and attention reads them all. Only the indexers are trained: the warm-up of a
	// model that was trained with dense attention.
	IndexersDense IndexerStage = "dense"
)

// IndexerLoss is the loss of the indexers on a batch, and its targets.
type IndexerLoss struct {
	KL kernels.Tensor // F32 [indexers, T], nats: written by Backward

	// F32 [T, keys]: what attention gives each key of a row's list; +0 between the layers of two indexers
	target kernels.Tensor
}

// NewIndexerLoss is the indexer loss of a batch of so many rows, the sum of their divergences. It is nil where indexers
// are frozen. KL lies on the rank's stack.
func (m *Model) NewIndexerLoss(r *parallel.Rank, rows int) *IndexerLoss {
	if m.Indexing == IndexersFrozen {
		return nil
	}
	return &IndexerLoss{KL: r.Stack.New(kernels.F32, len(m.indexers), rows)}
}

// prepare makes room for the target.
func (l *IndexerLoss) prepare(r *parallel.Rank, b *Batch, keys int) {
	l.target = r.Stack.Zeros(kernels.F32, b.Rows(), keys)
}

// indexerTrainer is what a layer keeps whose attention is a target of an indexer.
type indexerTrainer interface {
	trainIndexer(r *parallel.Rank, b *Batch)
}

// trainIndexer adds the layer's attention to the target. The layer that has the indexer then runs its Backward: it is
// the first of the layers that share a selection, and the last in a backward pass.
func (s *MLASaved) trainIndexer(r *parallel.Rank, b *Batch) {
	a := s.layer
	a.ops.indexing.IndexTarget(b.IndexerLoss.target, s.Q, s.K, s.LSE, s.Selected, b.Layout, a.Shape)
	if a.Index != nil {
		a.Index.Backward(r, s.Selected, b, &s.Index)
	}
}

// trainIndexers is Backward of the indexers alone.
func (st Stage) trainIndexers(r *parallel.Rank, b *Batch, s *Saved) {
	for i := st.To - 1; i >= st.From; i-- {
		st.model.sharded.use(i, i-1)
		st.model.grads.during(r, b, blockUnit(i), func() {
			defer r.Stack.Release(r.Stack.Mark())
			for _, sub := range st.inner(r, i, b, s) {
				if t, ok := sub.Layer.(indexerTrainer); ok {
					t.trainIndexer(r, b)
				}
			}
		})
	}
}

// IndexerParams is the weights of indexers that are trained.
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

// setIndexing sets whether the indexers of a new model are trained.
func (m *Model) setIndexing(stage IndexerStage) error {
	m.Indexing = stage
	if stage != IndexersFrozen && len(m.indexers) == 0 {
		return fmt.Errorf("model_type %s has no indexers of sparse attention to train: leave indexers frozen",
			m.Family)
	}
	return nil
}
