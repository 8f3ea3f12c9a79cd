package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Attention is causal grouped-query attention with rotary positions, and with what families add: RMSNorm of queries and
// keys, by head or of the whole projection; biases of the projections; sinks; a gate for each column of the output.
//
//	q, g, k, v = x Wq, x Wg, x Wk, x Wv; q, k = rope(norm(q)), rope(norm(k)); o = softmax(scale q k^T) v; y = (o *
//	sigm(g)) Wo
type Attention struct {
	QKV   *Linear // [(Heads + 2*KVHeads)*HeadDim, H]; the rows of the gate, Heads*HeadDim, lie behind those of q
	QNorm *Norm   // [HeadDim], or [Heads*HeadDim] of the whole projection; nil: none
	KNorm *Norm   // likewise, of KVHeads
	Sinks *Param  // [Heads]; nil: none
	O     *Linear // [H, Heads*HeadDim]
	Gated bool
	Shape kernels.Attn
	Rope  *kernels.Rope // nil: none
	Block int           // its number, by which the cache is found
	ops   *operations
}

// AttentionSaved is what Backward needs of a Forward.
type AttentionSaved struct {
	layer *Attention
	QKVIn LinearSaved
	QKV   kernels.Tensor // before norm and rope, and the gate
	Q, K  rotated
	Out   kernels.Tensor
	LSE   kernels.Tensor // [T, Heads]
	OIn   LinearSaved
}

func (a *Attention) split(qkv kernels.Tensor) (q, gate, k, v kernels.Tensor) {
	nq, nk := a.Shape.Heads*a.Shape.HeadDim, a.Shape.KVHeads*a.Shape.HeadDim
	q, rest := qkv.ColRange(0, nq), qkv.ColRange(nq, qkv.Cols)
	if a.Gated {
		gate, rest = rest.ColRange(0, nq), rest.ColRange(nq, rest.Cols)
	}
	return q, gate, rest.ColRange(0, nk), rest.ColRange(nk, 2*nk)
}

// Forward is [T, H] from x [T, H]; keys and values go to the batch's cache where it has one.
func (a *Attention) Forward(r *parallel.Rank, x kernels.Tensor, b *Batch, k *Keep) (kernels.Tensor, LayerSaved) {
	s := &AttentionSaved{layer: a}
	s.QKV = a.QKV.forward(r, x, nil, k, SaveProjections, &s.QKVIn)
	q, gate, keys, v := a.split(s.QKV)
	s.Q, s.K = rotate(r, q, a.QNorm, a.Rope, b), rotate(r, keys, a.KNorm, a.Rope, b)

	kv := a.ops.readBy(r, kernels.KV{K: s.K.Y, V: v}, a.Shape, a.Block, b)
	var done bool
	s.Out, _ = k.tensor(r, SaveAttention, x.DType, x.Rows, q.Cols)
	s.LSE, done = k.tensor(r, SaveAttention, kernels.F32, x.Rows, a.Shape.Heads)
	if !done {
		attend(r, s.Out, s.LSE, s.Q.Y, kv, a.Shape, b)
		if a.Sinks != nil {
			r.Dev.Sinks(s.Out, s.LSE, a.Sinks.W)
		}
	}
	use := ownInput
	if !a.Gated { // Backward reads it too
		use = sharedInput
	}
	y := a.O.forwardOf(r, x.Rows, use, func() kernels.Tensor {
		if !a.Gated {
			return s.Out
		}
		o := r.Stack.New(x.DType, x.Rows, q.Cols)
		a.ops.delta.SigmoidGate(o, s.Out, gate)
		return o
	}, nil, k, layerOutput, &s.OIn)
	if !k.saves() {
		return y, nil
	}
	return y, s
}

// Backward is dx from dy.
func (s *AttentionSaved) Backward(r *parallel.Rank, dy kernels.Tensor, b *Batch) kernels.Tensor {
	a := s.layer
	q, gate, k, v := a.split(s.QKV)
	x := qkv{s.Q.Y, s.K.Y, v}
	again := headsAgain(r, x, s.Out, s.LSE, b)
	dout := a.O.Backward(r, dy, nil, b.Segments, &s.OIn)
	dqkv := r.GradStack().New(dy.DType, dy.Rows, s.QKV.Cols)
	dq, dgate, dk, dv := a.split(dqkv)
	if a.Gated {
		a.ops.delta.SigmoidGateBackward(dout, dgate, dout, s.Out, gate)
	}
	if a.Sinks != nil && a.Sinks.Trained() {
		r.Dev.SinksBackward(a.Sinks.Grad, dout, s.Out, s.LSE, a.Sinks.W, b.Layout.Segments)
	}
	attendBackward(r, qkv{dq, dk, dv}, dout, s.Out, s.LSE, x, again, a.Shape, b)
	s.Q.backward(r, dq, q, a.QNorm, a.Rope, b)
	s.K.backward(r, dk, k, a.KNorm, a.Rope, b)
	return a.QKV.Backward(r, dqkv, nil, b.Segments, &s.QKVIn)
}

// qkv is queries, keys and values, or their gradients.
type qkv struct{ q, k, v kernels.Tensor }

// attend writes attention's output [T, Heads*ValueDim] and log-sums [T, Heads] for queries q and what they read.
func attend(r *parallel.Rank, out, lse, q kernels.Tensor, kv kernels.KV, a kernels.Attn, b *Batch) {
	if b.Context == nil {
		r.Dev.Attention(out, lse, q, kv, b.Layout, a)
		return
	}
	defer r.Stack.Release(r.Stack.Mark())
	own := b.toHeads(r, q, kv.K, kv.V)
	rows, of := own[0].Rows, b.headsOf(a)
	o := r.Stack.New(out.DType, rows, out.Cols/b.Context.Ranks)
	l := r.Stack.New(lse.DType, rows, of.Heads)
	r.Dev.Attention(o, l, own[0], kernels.KV{K: own[1], V: own[2]}, b.sequences(), of)
	b.toRows(r, parallel.Pair{Dst: out, Src: o}, parallel.Pair{Dst: lse, Src: l})
}

// headsAgain begins to bring what attendBackward reads of all rows besides dout. Of several ranks that have a sequence,
// forward has kept nothing of other ranks' rows: they come again, behind the gradient of the output's projection.
func headsAgain(r *parallel.Rank, x qkv, out, lse kernels.Tensor, b *Batch) headRows {
	return b.beginHeads(r, x.q, x.k, x.v, out, lse)
}

// attendBackward writes the gradients of what attention reads.
func attendBackward(r *parallel.Rank, d qkv, dout, out, lse kernels.Tensor, x qkv, again headRows, a kernels.Attn,
	b *Batch) {
	if b.Context == nil {
		r.Dev.AttentionBackward(d.q, d.k, d.v, dout, out, lse, x.q, kernels.KV{K: x.k, V: x.v}, b.Layout, a)
		return
	}
	defer r.Stack.Release(r.Stack.Mark())
	dheads := b.toHeads(r, dout)[0]
	own := again.wait()
	var dx [3]kernels.Tensor
	for i, t := range own[:3] {
		dx[i] = r.Stack.New(t.DType, t.Rows, t.Cols)
	}
	r.Dev.AttentionBackward(dx[0], dx[1], dx[2], dheads, own[3], own[4], own[0], kernels.KV{K: own[1], V: own[2]},
		b.sequences(), b.headsOf(a))
	b.toRows(r, parallel.Pair{Dst: d.q, Src: dx[0]}, parallel.Pair{Dst: d.k, Src: dx[1]},
		parallel.Pair{Dst: d.v, Src: dx[2]})
}

func (a *Attention) contextHeads() (n int, key string) { return a.Shape.KVHeads, "num_key_value_heads" }

// Linears are the stacked projection of queries, keys and values, and that of the output.
func (a *Attention) Linears() []*Linear { return []*Linear{a.QKV, a.O} }

// work is that of the projections and of attention itself.
func (a *Attention) work(e Extent) (w work) {
	d, heads := a.QKV.W.W.DType, a.Shape.Heads
	w.product(SaveProjections, a.QKV, e.Rows)
	w.result(SaveAttention, e.attention(a.Shape, 0), shape{d, e.Rows, heads * a.Shape.HeadDim},
		shape{kernels.F32, e.Rows, heads})
	w.output = a.O.flops(e.Rows)
	return w
}

// Idle is 0.
func (a *Attention) Idle() int { return 0 }

// NewCache is pages of keys and values.
func (a *Attention) NewCache(mem *kernels.Arena, s CacheSize) LayerCache {
	return LayerCache{KV: a.ops.newKV(mem, a.QKV.W.W.DType, a.Shape, false, s)}
}

// PageBytes is the memory of keys and values of so many rows.
func (a *Attention) PageBytes(rows int) int {
	return a.ops.kvBytes(a.QKV.W.W.DType, a.Shape, false, rows)
}

// SlotBytes is 0: a sequence has pages alone.
func (a *Attention) SlotBytes() int { return 0 }
