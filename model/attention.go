package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Attention is causal grouped-query attention with RMSNorm on each query and key head and rotary positions:
//
//	q, k, v = x Wq, x Wk, x Wv;  q, k = rope(norm(q)), rope(norm(k));  o = softmax(scale q k^T) v;  y = o Wo
type Attention struct {
	QKV   *Linear // [(Heads + 2*KVHeads)*HeadDim, H]
	QNorm *Norm   // [HeadDim]
	KNorm *Norm
	O     *Linear // [H, Heads*HeadDim]
	Shape kernels.Attn
	Layer int
}

// AttentionSaved keeps what Backward needs.
type AttentionSaved struct {
	QKVIn        LinearSaved
	QKV          kernels.Tensor // before norm and rope
	RStdQ, RStdK kernels.Tensor // [T, heads]
	Q, K, Out    kernels.Tensor
	LSE          kernels.Tensor // [T, Heads]
	OIn          LinearSaved
}

func (a *Attention) split(qkv kernels.Tensor) (q, k, v kernels.Tensor) {
	nq, nk := a.Shape.Heads*a.Shape.HeadDim, a.Shape.KVHeads*a.Shape.HeadDim
	return qkv.ColRange(0, nq), qkv.ColRange(nq, nq+nk), qkv.ColRange(nq+nk, nq+2*nk)
}

// Forward is [T, H] from x [T, H]; keys and values go to the batch's cache where it has one.
func (a *Attention) Forward(r *parallel.Rank, x kernels.Tensor, rope kernels.Rope, b *Batch, s *AttentionSaved) kernels.Tensor {
	var keep AttentionSaved
	keep.QKV = a.QKV.Forward(r, x, nil, &keep.QKVIn)
	q, k, v := a.split(keep.QKV)
	keep.Q = r.Stack.New(x.DType, x.Rows, q.Cols)
	keep.K = r.Stack.New(x.DType, x.Rows, k.Cols)
	keep.RStdQ = r.Stack.New(kernels.F32, x.Rows, a.Shape.Heads)
	keep.RStdK = r.Stack.New(kernels.F32, x.Rows, a.Shape.KVHeads)
	r.Dev.HeadNormRope(keep.Q, keep.RStdQ, q, a.QNorm.W.W, b.Positions, rope, a.QNorm.Eps)
	r.Dev.HeadNormRope(keep.K, keep.RStdK, k, a.KNorm.W.W, b.Positions, rope, a.KNorm.Eps)

	kv := kernels.KV{K: keep.K, V: v}
	if b.Cache != nil {
		kv = b.Cache.Layers[a.Layer]
		r.Dev.StoreKV(kv, keep.K, v, b.Layout)
	}
	keep.Out = r.Stack.New(x.DType, x.Rows, q.Cols)
	keep.LSE = r.Stack.New(kernels.F32, x.Rows, a.Shape.Heads)
	r.Dev.Attention(keep.Out, keep.LSE, keep.Q, kv, b.Layout, a.Shape)
	y := a.O.Forward(r, keep.Out, nil, &keep.OIn)
	if s != nil {
		*s = keep
	}
	return y
}

// Backward is dx from dy.
func (a *Attention) Backward(r *parallel.Rank, dy kernels.Tensor, rope kernels.Rope, b *Batch, s *AttentionSaved) kernels.Tensor {
	dout := a.O.Backward(r, dy, nil, b.Packs, &s.OIn)
	dqkv := r.Stack.New(dy.DType, dy.Rows, s.QKV.Cols)
	q, k, v := a.split(s.QKV)
	dq, dk, dv := a.split(dqkv)
	r.Dev.AttentionBackward(dq, dk, dv, dout, s.Out, s.LSE, s.Q, kernels.KV{K: s.K, V: v}, b.Layout, a.Shape)
	r.Dev.HeadNormRopeBackward(dq, a.QNorm.W.Grad, dq, q, s.RStdQ, a.QNorm.W.W, b.Positions, rope, b.Layout.Packs)
	r.Dev.HeadNormRopeBackward(dk, a.KNorm.W.Grad, dk, k, s.RStdK, a.KNorm.W.W, b.Positions, rope, b.Layout.Packs)
	return a.QKV.Backward(r, dqkv, nil, b.Packs, &s.QKVIn)
}
