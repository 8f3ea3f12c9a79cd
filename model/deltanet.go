package model

import (
	"math"

	"lockstep/kernels"
	"lockstep/parallel"
)

// DeltaNet is Gated DeltaNet (Yang, Kautz & Hatamizadeh, arXiv 2412.06464) as Qwen3.5 has it:
//
//	u, z, b, a = x Wqkv, x Wz, x Wb, x Wa;  q, k, v = silu(conv(u));  g = -exp(A_log) softplus(a + dt_bias)
//	o = the gated delta rule of q, k, v, g, sigm(b);  y = (norm(o) * silu(z)) Wo
type DeltaNet struct {
	recurrent       // rows of In: u (q, k, v), z, b, a
	Norm      *Norm // F32 [ValueDim], shared by the heads
	ops       *operations
}

// DeltaNetSaved is what Backward needs of a Forward.
type DeltaNetSaved struct {
	layer       *DeltaNet
	InIn, OutIn LinearSaved
	In          kernels.Tensor // [T, rows of In]
	QKV         kernels.Tensor // [T, C], behind the convolution
	G           kernels.Tensor // F32 [T, Heads]
	O           kernels.Tensor // [T, Heads*ValueDim]
	RStd        kernels.Tensor // [T, Heads]
}

// deltaParts are the columns of In's output.
type deltaParts struct{ u, z, b, a kernels.Tensor }

func (n *DeltaNet) split(in kernels.Tensor) deltaParts {
	c, heads := n.Conv.W.Rows, n.Shape.Heads
	z := c + heads*n.Shape.ValueDim
	return deltaParts{u: in.ColRange(0, c), z: in.ColRange(c, z), b: in.ColRange(z, z+heads),
		a: in.ColRange(z+heads, z+2*heads)}
}

func (n *DeltaNet) heads(qkv kernels.Tensor) (q, k, v kernels.Tensor) {
	keys := n.Shape.KeyHeads * n.Shape.KeyDim
	return qkv.ColRange(0, keys), qkv.ColRange(keys, 2*keys), qkv.ColRange(2*keys, qkv.Cols)
}

// Forward is [T, H] from x [T, H].
func (n *DeltaNet) Forward(r *parallel.Rank, x kernels.Tensor, b *Batch, k *Keep) (kernels.Tensor, LayerSaved) {
	dev, s := n.ops.delta, &DeltaNetSaved{layer: n}
	heads := n.Shape.Heads
	s.In = n.In.forward(r, x, nil, k, SaveProjections, &s.InIn)
	in := n.split(s.In)
	s.G = r.Stack.New(kernels.F32, x.Rows, heads)
	dev.Decay(s.G, r.Stack.New(kernels.F32, x.Rows, heads), kernels.DecayOperands{A: in.a, Rate: n.Decay.Rate.W,
		Bias: n.Decay.Bias.W}, n.Decay.Lo,
		n.Decay.Hi)
	var done bool
	s.O, done = k.tensor(r, SaveAttention, x.DType, x.Rows, heads*n.Shape.ValueDim)
	n.recur(r, in, done, b, s)

	y := r.Stack.New(x.DType, x.Rows, s.O.Cols)
	s.RStd = r.Stack.New(kernels.F32, x.Rows, heads)
	dev.NormThenGate(y, s.RStd, s.O, in.z, n.Norm.W.W, n.Norm.Eps)
	out := n.Out.forward(r, y, nil, k, layerOutput, &s.OutIn)
	if !k.saves() {
		return out, nil
	}
	return out, s
}

// Backward is dx from dy.
func (s *DeltaNetSaved) Backward(r *parallel.Rank, dy kernels.Tensor, b *Batch) kernels.Tensor {
	dev, n := s.layer.ops.delta, s.layer
	segments := b.Layout.Segments
	again := n.headsAgain(r, b, s)
	dgated := n.Out.Backward(r, dy, nil, b.Segments, &s.OutIn)
	din := r.Stack.New(dy.DType, dy.Rows, s.In.Cols)
	in, d := n.split(s.In), n.split(din)
	do := r.Stack.New(dy.DType, dy.Rows, s.O.Cols)
	dev.NormThenGateBackward(do, d.z, n.Norm.W.Grad, dgated, s.O, in.z, s.RStd, n.Norm.W.W, segments)

	dg := r.Stack.New(kernels.F32, dy.Rows, n.Shape.Heads)
	n.recurBackward(r, d, dg, do, in, again, b, s)
	dev.DecayBackward(kernels.DecayOperands{A: d.a, Rate: n.Decay.Rate.Grad, Bias: n.Decay.Bias.Grad}, dg,
		kernels.Tensor{}, s.G, kernels.DecayOperands{A: in.a, Rate: n.Decay.Rate.W, Bias: n.Decay.Bias.W}, n.Decay.Lo,
		n.Decay.Hi, segments)
	return n.In.Backward(r, din, nil, b.Segments, &s.InIn)
}

// recur is the convolution of u, and unless it is done the delta rule, which writes O.
func (n *DeltaNet) recur(r *parallel.Rank, in deltaParts, done bool, b *Batch, s *DeltaNetSaved) {
	dev := n.ops.delta
	if b.Context != nil {
		if !done { // else Backward convolves by itself
			n.recurHeads(r, in, b, s)
		}
		return
	}
	chunks, conv := recurrentState(b, n.Block)
	s.QKV = r.Stack.New(in.u.DType, in.u.Rows, in.u.Cols)
	dev.ShortConv(s.QKV, in.u, n.Conv.W, kernels.Tensor{}, conv, b.Layout)
	if !done {
		q, k, v := n.heads(s.QKV)
		dev.DeltaRule(s.O, kernels.DeltaRuleOperands{Q: q, K: k, V: v, G: s.G, B: in.b}, chunks, b.Layout, n.Shape)
	}
}

// recurBackward writes the gradients of u and b to d, and dg, from that of O.
func (n *DeltaNet) recurBackward(r *parallel.Rank, d deltaParts, dg, do kernels.Tensor, in deltaParts, again headRows,
	b *Batch, s *DeltaNetSaved) {
	if b.Context != nil {
		n.recurHeadsBackward(r, d, dg, do, again, b)
		return
	}
	dev, dqkv := n.ops.delta, r.Stack.New(do.DType, do.Rows, s.QKV.Cols)
	q, k, v := n.heads(s.QKV)
	dq, dk, dv := n.heads(dqkv)
	dev.DeltaRuleBackward(kernels.DeltaRuleOperands{Q: dq, K: dk, V: dv, G: dg, B: d.b}, do,
		kernels.DeltaRuleOperands{Q: q, K: k, V: v, G: s.G, B: in.b}, b.Layout, n.Shape)
	dev.ShortConvBackward(d.u, n.Conv.Grad, kernels.Tensor{}, dqkv, in.u, n.Conv.W, kernels.Tensor{}, b.Layout)
}

// recurHeads is recur where ranks divide the heads.
func (n *DeltaNet) recurHeads(r *parallel.Rank, in deltaParts, b *Batch, s *DeltaNetSaved) {
	defer r.Stack.Release(r.Stack.Mark())
	q, k, v := n.heads(in.u)
	own := b.toHeads(r, q, k, v, s.G, in.b)
	c := b.convolve(r, n.ops.delta, own[:3], n.Conv, nil)
	o := r.Stack.New(s.O.DType, own[0].Rows, s.O.Cols/b.Context.Ranks)
	n.ops.delta.DeltaRule(o, kernels.DeltaRuleOperands{Q: c[0], K: c[1], V: c[2], G: own[3], B: own[4]}, nil,
		b.sequences(), b.recurrenceOf(n.Shape))
	b.toRows(r, parallel.Pair{Dst: s.O, Src: o})
}

// headsAgain is what recurHeadsBackward has of all rows besides do. It comes behind the gradients of the output's
// projection and gate.
func (n *DeltaNet) headsAgain(r *parallel.Rank, b *Batch, s *DeltaNetSaved) headRows {
	if b.Context == nil {
		return headRows{}
	}
	in := n.split(s.In)
	q, k, v := n.heads(in.u)
	return b.beginHeads(r, q, k, v, s.G, in.b)
}

func (n *DeltaNet) recurHeadsBackward(r *parallel.Rank, d deltaParts, dg, do kernels.Tensor, again headRows, b *Batch) {
	defer r.Stack.Release(r.Stack.Mark())
	dout, own := b.beginHeads(r, do), again.wait()
	u := own[:3]
	c := b.convolve(r, n.ops.delta, u, n.Conv, nil)
	dc, rest := like(r, c...), like(r, own[3], own[4])
	n.ops.delta.DeltaRuleBackward(kernels.DeltaRuleOperands{Q: dc[0], K: dc[1], V: dc[2], G: rest[0], B: rest[1]},
		dout.wait()[0], kernels.DeltaRuleOperands{Q: c[0], K: c[1], V: c[2], G: own[3], B: own[4]}, b.sequences(),
		b.recurrenceOf(n.Shape))
	dq, dk, dv := n.heads(d.u)
	b.convolveBackward(r, n.ops.delta, []kernels.Tensor{dq, dk, dv}, dc, u, n.Conv, nil)
	b.toRows(r, parallel.Pair{Dst: dg, Src: rest[0]}, parallel.Pair{Dst: d.b, Src: rest[1]})
}

func (n *DeltaNet) contextHeads() (heads int, key string) {
	return n.Shape.KeyHeads, "linear_num_key_heads"
}

// recurrent is what DeltaNet and Mamba have alike: two projections around a short convolution and a recurrence.
type recurrent struct {
	In    *Linear // from the H columns of the input
	Conv  *Param  // [C, taps]
	Decay decay
	Out   *Linear // [H, Heads*ValueDim]
	Shape kernels.Recurrence
	Block int // its number, by which the cache is found
}

// Linears are the projections of the input and of the output.
func (n *recurrent) Linears() []*Linear { return []*Linear{n.In, n.Out} }

// work is that of the projections and of the recurrence.
func (n *recurrent) work(e Extent) (w work) {
	w.product(SaveProjections, n.In, e.Rows)
	w.result(SaveAttention, e.recurrence(n.Shape), shape{n.In.W.W.DType, e.Rows, n.Shape.Heads * n.Shape.ValueDim})
	w.output = n.Out.flops(e.Rows)
	return w
}

// Idle is 0.
func (n *recurrent) Idle() int { return 0 }

// NewCache is a state and the last inputs of the convolution for each slot.
func (n *recurrent) NewCache(mem *kernels.Arena, s CacheSize) LayerCache {
	w := n.Conv.W
	return LayerCache{
		State: kernels.NewChunkState(mem, n.Shape, s.Slots, kernels.Default().ChunkRows),
		Conv:  mem.NewGrouped(w.DType, s.Slots, w.Cols-1, w.Rows),
	}
}

// PageBytes is 0: a sequence has a slot alone.
func (n *recurrent) PageBytes(int) int { return 0 }

// SlotBytes is the memory of one sequence, whatever its length.
func (n *recurrent) SlotBytes() int {
	w := n.Conv.W
	return kernels.ChunkStateBytes(n.Shape, kernels.Default().ChunkRows) + (w.Cols-1)*w.Rows*w.DType.Size()
}

// decay is the parameters of the heads' decays, F32 whatever the model's storage: g = -exp(Rate) * clamp(softplus(a +
// Bias), Lo, Hi).
type decay struct {
	Rate, Bias *Param // [1, heads]; A_log and dt_bias
	Lo, Hi     float32
}

// forever is an upper bound of steps that bounds nothing.
var forever = float32(math.Inf(1))
