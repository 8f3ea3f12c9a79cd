package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Indexer chooses the keys that sparse attention reads (DeepSeek-V3.2 report; GLM-5). It is frozen: its weights are not trained, and no gradient goes through the choice.
//
//	q = rope(u Wq), k = rope(norm(x Wk)), w = x Ww * Heads^-0.5;  score of a key = sum over heads of w * max(q k * Scale, 0)
type Indexer struct {
	Q       *Param // [Heads*Dim, cq], from the normed query latent
	K       *Param // [Dim, H]
	KNorm   *Param // [Dim]: weight of a LayerNorm
	KBias   *Param // [Dim]
	Weights *Param // [Heads, H]
	Eps     float32
	Scale   float32 // of the weights
	Shape   kernels.Index
	Rope    kernels.Rope // of the first columns of a head
}

// choose writes the choice of each row to picks, unless that is nil: then every row sees few enough keys to read all. u is the query latent, x [T, H]. Keys go to
// the cache where the batch has one.
func (n *Indexer) choose(r *parallel.Rank, picks, u, x kernels.Tensor, cache kernels.KV, b *Batch) {
	if picks.IsNil() && b.Cache == nil {
		return
	}
	defer r.Stack.Release(r.Stack.Mark())
	dev := r.Dev.(kernels.SparseAttention)
	k := r.Stack.New(x.DType, x.Rows, n.Shape.Dim)
	r.Dev.MatMul(k, nil, kernels.Term{X: x, W: n.K.W})
	dev.LayerNorm(k, k, n.KNorm.W, n.KBias.W, n.Eps)
	turn(r, k, n.Rope, b)
	keys := kernels.KV{K: k}
	if b.Cache != nil {
		keys = cache
		r.Dev.StoreKV(cache, k, r.Stack.New(x.DType, x.Rows, 0), b.Layout)
	}
	if picks.IsNil() {
		return
	}
	q := r.Stack.New(x.DType, x.Rows, n.Shape.Heads*n.Shape.Dim)
	r.Dev.MatMul(q, nil, kernels.Term{X: u, W: n.Q.W})
	turn(r, q, n.Rope, b)
	w := r.Stack.New(kernels.F32, x.Rows, n.Shape.Heads)
	r.Dev.MatMul(w, nil, kernels.Term{X: x, W: n.Weights.W})
	r.Dev.Scale(w, w, n.Scale)
	dev.SelectKeys(picks, q, w, keys, b.Layout, n.Shape)
}
