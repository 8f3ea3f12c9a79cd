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
	In    *Linear // [C + Heads*ValueDim + 2*Heads, H]: rows of u (q, k, v), z, b, a
	Conv  *Param  // [C, taps]
	Decay decay
	Norm  *Norm   // F32 [ValueDim], shared by the heads
	Out   *Linear // [H, Heads*ValueDim]
	Shape kernels.Recurrence
	Block int // its number, by which the cache is found
	ops   *operations
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
	chunks, conv := recurrentState(b, n.Block)
	s.In = n.In.forward(r, x, nil, k, SaveProjections, &s.InIn)
	in := n.split(s.In)
	s.QKV = r.Stack.New(x.DType, x.Rows, n.Conv.W.Rows)
	dev.ShortConv(s.QKV, in.u, n.Conv.W, kernels.Tensor{}, conv, b.Layout)

	s.G = r.Stack.New(kernels.F32, x.Rows, heads)
	dev.Decay(s.G, r.Stack.New(kernels.F32, x.Rows, heads), kernels.DecayOperands{A: in.a, Rate: n.Decay.Rate.W,
		Bias: n.Decay.Bias.W}, n.Decay.Lo,
		n.Decay.Hi)
	var done bool
	if s.O, done = k.tensor(r, SaveAttention, x.DType, x.Rows, heads*n.Shape.ValueDim); !done {
		q, keys, v := n.heads(s.QKV)
		dev.DeltaRule(s.O, kernels.DeltaRuleOperands{Q: q, K: keys, V: v, G: s.G, B: in.b}, chunks, b.Layout, n.Shape)
	}

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
	dgated := n.Out.Backward(r, dy, nil, b.Segments, &s.OutIn)
	din := r.Stack.New(dy.DType, dy.Rows, s.In.Cols)
	in, d := n.split(s.In), n.split(din)
	do := r.Stack.New(dy.DType, dy.Rows, s.O.Cols)
	dev.NormThenGateBackward(do, d.z, n.Norm.W.Grad, dgated, s.O, in.z, s.RStd, n.Norm.W.W, segments)

	dqkv := r.Stack.New(dy.DType, dy.Rows, s.QKV.Cols)
	dg := r.Stack.New(kernels.F32, dy.Rows, n.Shape.Heads)
	q, k, v := n.heads(s.QKV)
	dq, dk, dv := n.heads(dqkv)
	dev.DeltaRuleBackward(kernels.DeltaRuleOperands{Q: dq, K: dk, V: dv, G: dg, B: d.b}, do,
		kernels.DeltaRuleOperands{Q: q, K: k, V: v, G: s.G, B: in.b}, b.Layout, n.Shape)
	dev.DecayBackward(kernels.DecayOperands{A: d.a, Rate: n.Decay.Rate.Grad, Bias: n.Decay.Bias.Grad}, dg,
		kernels.Tensor{}, s.G, kernels.DecayOperands{A: in.a, Rate: n.Decay.Rate.W, Bias: n.Decay.Bias.W}, n.Decay.Lo,
		n.Decay.Hi, segments)
	dev.ShortConvBackward(d.u, n.Conv.Grad, kernels.Tensor{}, dqkv, in.u, n.Conv.W, kernels.Tensor{}, b.Layout)
	return n.In.Backward(r, din, nil, b.Segments, &s.InIn)
}

// Linears are the stacked projections of the input and that of the output.
func (n *DeltaNet) Linears() []*Linear { return []*Linear{n.In, n.Out} }

// work is that of the projections and of the recurrence.
func (n *DeltaNet) work(e Extent) (w work) {
	w.product(SaveProjections, n.In, e.Rows)
	w.result(SaveAttention, e.recurrence(n.Shape), shape{n.In.W.W.DType, e.Rows, n.Shape.Heads * n.Shape.ValueDim})
	w.output = n.Out.flops(e.Rows)
	return w
}

// Idle is 0.
func (n *DeltaNet) Idle() int { return 0 }

// NewCache is a state and the last inputs of the convolution for each slot.
func (n *DeltaNet) NewCache(mem *kernels.Arena, s CacheSize) LayerCache {
	return newRecurrentCache(mem, s, n.Shape, n.Conv)
}

// PageBytes is 0: a sequence has a slot alone.
func (n *DeltaNet) PageBytes(int) int { return 0 }

// SlotBytes is the memory of one sequence, whatever its length.
func (n *DeltaNet) SlotBytes() int { return recurrentSlotBytes(n.Shape, n.Conv) }

// decay is the parameters of the heads' decays, F32 whatever the model's storage: g = -exp(Rate) * clamp(softplus(a +
// Bias), Lo, Hi).
type decay struct {
	Rate, Bias *Param // [1, heads]; A_log and dt_bias
	Lo, Hi     float32
}

// forever is an upper bound of steps that bounds nothing.
var forever = float32(math.Inf(1))
