package model

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Indexer selects the keys that sparse attention reads (DeepSeek-V3.2 report; GLM-5). No gradient goes through the
// selection. An indexer is frozen, or trained to score keys as attention weighs them (see [IndexerStage]). That loss
// has gradients of the indexer's own weights alone.
//
//	q = rope(u Wq), k = rope(norm(x Wk)), w = x Ww * Heads^-0.5; score of a key = sum over heads of w * max(q k *
//	Scale, 0)
type Indexer struct {
	Q       *Param // [Heads*Dim, cq], from the normed query latent
	K       *Param // [Dim, H]
	KNorm   *Param // [Dim]: weight of a LayerNorm
	KBias   *Param // [Dim]
	Weights *Param // [Heads, H]
	Eps     float32
	Scale   float32 // of the weights
	Shape   kernels.Index
	Rope    *kernels.Rope // of the first columns of a head
	Place   int           // among the indexers of the model
	Block   int           // its number
	Selects bool          // attention reads the selected keys alone; false: all of them
	ops     *operations
}

// IndexerSaved is what Backward needs.
type IndexerSaved struct {
	U, X    kernels.Tensor // the query latent [T, cq], the input [T, H]
	K0      kernels.Tensor // [T, Dim]: keys before their norm
	Q, K, W kernels.Tensor // [T, Heads*Dim], [T, Dim], F32 [T, Heads]
}

// Forward writes the keys of each row to selected, int32 [T, TopK]. It is nil where no row has more than TopK keys. u
// is the query latent [T, cq], x [T, H]. Keys go to the cache where the batch has one. Where s is not nil, what
// Backward needs stays on the stack.
func (n *Indexer) Forward(r *parallel.Rank, selected, u, x kernels.Tensor, cache kernels.KV, b *Batch,
	s *IndexerSaved) {
	if selected.IsNil() && b.Cache == nil && s == nil {
		return
	}
	learns := s != nil
	if !learns {
		defer r.Stack.Release(r.Stack.Mark())
		s = new(IndexerSaved)
	}
	dev := n.ops.sparse
	s.U, s.X = u, x
	s.K0, s.K = r.Stack.New(x.DType, x.Rows, n.Shape.Dim), r.Stack.New(x.DType, x.Rows, n.Shape.Dim)
	r.Dev.MatMul(s.K0, nil, kernels.Term{X: x, W: n.K.W})
	dev.LayerNorm(s.K, s.K0, n.KNorm.W, n.KBias.W, n.Eps)
	applyRope(r, s.K, s.K, n.Rope, b)
	keys := kernels.KV{K: s.K}
	if b.Cache != nil {
		keys = cache
		r.Dev.StoreKV(cache, s.K, r.Stack.New(x.DType, x.Rows, 0), b.Layout)
	}
	if selected.IsNil() && !learns {
		return
	}
	s.Q = r.Stack.New(x.DType, x.Rows, n.Shape.Heads*n.Shape.Dim)
	r.Dev.MatMul(s.Q, nil, kernels.Term{X: u, W: n.Q.W})
	applyRope(r, s.Q, s.Q, n.Rope, b)
	s.W = r.Stack.New(kernels.F32, x.Rows, n.Shape.Heads)
	r.Dev.MatMul(s.W, nil, kernels.Term{X: x, W: n.Weights.W})
	r.Dev.Scale(s.W, s.W, n.Scale)
	switch {
	case selected.IsNil():
	case b.Context != nil:
		n.selectDealt(r, selected, b, s)
	default:
		dev.SelectKeys(selected, s.Q, s.W, keys, b.Layout, n.Shape)
	}
}

// selectDealt is SelectKeys of the rows that this rank is dealt, of whose own it gets the lists from the other ranks.
func (n *Indexer) selectDealt(r *parallel.Rank, selected kernels.Tensor, b *Batch, s *IndexerSaved) {
	defer r.Stack.Release(r.Stack.Mark())
	l := b.dealtRows(r)
	q, w := r.Stack.New(s.Q.DType, l.Rows(), s.Q.Cols), r.Stack.New(s.W.DType, l.Rows(), s.W.Cols)
	lists := r.Stack.New(selected.DType, l.Rows(), selected.Cols)
	b.exchange(r, b.deal, []parallel.Pair{{Dst: q, Src: s.Q}, {Dst: w, Src: s.W}})
	keys := kernels.KV{K: b.gather(r, s.K)[0]}
	if l.Rows() > 0 {
		n.ops.sparse.SelectKeys(lists, q, w, keys, l, n.Shape)
	}
	b.exchange(r, b.collectDealt, []parallel.Pair{{Dst: selected, Src: lists}})
}

// Backward takes the attention that the batch has gathered for each key as the target. It writes the divergence of each
// row and accumulates the gradients of the weights.
func (n *Indexer) Backward(r *parallel.Rank, selected kernels.Tensor, b *Batch, s *IndexerSaved) {
	defer r.Stack.Release(r.Stack.Mark())
	dev := n.ops.indexing
	scores := b.IndexerLoss.target
	dev.IndexLoss(b.IndexerLoss.KL.RowRange(n.Place, n.Place+1), scores, s.Q, s.W, s.K, selected, b.Layout, n.Shape)
	dq, dk := r.Stack.New(s.Q.DType, s.Q.Rows, s.Q.Cols), r.Stack.New(s.K.DType, s.K.Rows, s.K.Cols)
	dw := r.Stack.New(kernels.F32, s.W.Rows, s.W.Cols)
	dev.IndexBackward(dq, dk, dw, scores, s.Q, s.W, s.K, selected, b.Layout, n.Shape)
	r.Dev.Zero(scores)

	applyRopeBackward(r, dq, n.Rope, b)
	weightGrad(r, n.Q, dq, s.U, b.Segments)
	applyRopeBackward(r, dk, n.Rope, b)
	dev.LayerNormBackward(dk, n.KNorm.Grad, n.KBias.Grad, dk, s.K0, n.KNorm.W, n.Eps, b.Layout.Segments)
	weightGrad(r, n.K, dk, s.X, b.Segments)
	r.Dev.Scale(dw, dw, n.Scale)
	dlogits := r.Stack.New(s.X.DType, dw.Rows, dw.Cols)
	r.Dev.Copy(dlogits, dw)
	weightGrad(r, n.Weights, dlogits, s.X, b.Segments)
}

// flops is the work of one Forward: products and the score of each key that a row sees.
func (n *Indexer) flops(e Extent) float64 {
	rows := 2 * float64(e.Rows)
	products := n.Q.Elements() + n.K.Elements() + n.Weights.Elements()
	return rows * (float64(products) + float64(e.keys(0, 0)*float64(n.Shape.Heads*n.Shape.Dim)))
}

// params are the weights, in the order of the graph.
func (n *Indexer) params() []*Param { return []*Param{n.Q, n.K, n.KNorm, n.KBias, n.Weights} }

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
func (st Stage) trainIndexers(r *parallel.Rank, s *Share) {
	for i := range st.down(r) {
		st.model.grads.during(r, s, unitBackward{blockUnit(i), func(p *Pass) {
			defer r.Stack.Release(r.Stack.Mark())
			st.withInner(r, i, p, func(inner BlockSaved) {
				for _, sub := range inner {
					if t, ok := sub.Layer.(indexerTrainer); ok {
						t.trainIndexer(r, p.Batch)
					}
				}
			})
		}})
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
