package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Mamba is Mamba2 (Dao & Gu, arXiv 2405.21060) as Nemotron-H has it:
//
//	z, u, a = parts of x Win;  x, B, C = silu(conv(u) + bias);  dt = clamp(softplus(a + dt_bias));  g = -exp(A_log) dt
//	o = the state space of C, B, x, g, dt, with the skip D;  y = norm(o * silu(z)) Wout
type Mamba struct {
	recurrent        // rows of In: z, u (x, B, C), a
	ConvBias  *Param // [1, C], or nil
	Skip      *Param // F32 [1, Heads]; D
	Norm      *Norm  // [Heads*ValueDim], over each of Groups parts
	Groups    int
	ops       *operations
}

// MambaSaved is what Backward needs of a Forward.
type MambaSaved struct {
	layer       *Mamba
	InIn, OutIn LinearSaved
	In          kernels.Tensor // [T, rows of In]
	XBC         kernels.Tensor // [T, C], behind the convolution
	G, Step     kernels.Tensor // F32 [T, Heads]
	O           kernels.Tensor // [T, Heads*ValueDim]
	RStd        kernels.Tensor // [T, Groups]
}

// mambaParts are the columns of In's output.
type mambaParts struct{ z, u, a kernels.Tensor }

func (m *Mamba) split(in kernels.Tensor) mambaParts {
	z := m.Shape.Heads * m.Shape.ValueDim
	u := z + m.Conv.W.Rows
	return mambaParts{z: in.ColRange(0, z), u: in.ColRange(z, u), a: in.ColRange(u, u+m.Shape.Heads)}
}

func (m *Mamba) heads(xbc kernels.Tensor) (x, b, c kernels.Tensor) {
	values, keys := m.Shape.Heads*m.Shape.ValueDim, m.Shape.KeyHeads*m.Shape.KeyDim
	return xbc.ColRange(0, values), xbc.ColRange(values, values+keys), xbc.ColRange(values+keys, values+2*keys)
}

func (m *Mamba) convBias() (w, grad kernels.Tensor) {
	if m.ConvBias == nil {
		return kernels.Tensor{}, kernels.Tensor{}
	}
	return m.ConvBias.W, m.ConvBias.Grad
}

// Forward is [T, H] from x [T, H].
func (m *Mamba) Forward(r *parallel.Rank, x kernels.Tensor, b *Batch, k *Keep) (kernels.Tensor, LayerSaved) {
	dev, s := m.ops.mamba, &MambaSaved{layer: m}
	s.In = m.In.forward(r, x, nil, k, SaveProjections, &s.InIn)
	in := m.split(s.In)
	s.G, s.Step = r.Stack.New(kernels.F32, x.Rows, m.Shape.Heads), r.Stack.New(kernels.F32, x.Rows, m.Shape.Heads)
	dev.Decay(s.G, s.Step, kernels.DecayOperands{A: in.a, Rate: m.Decay.Rate.W, Bias: m.Decay.Bias.W}, m.Decay.Lo,
		m.Decay.Hi)
	var done bool
	s.O, done = k.tensor(r, SaveAttention, x.DType, x.Rows, in.z.Cols)
	m.recur(r, in.u, done, b, s)

	y := r.Stack.New(x.DType, x.Rows, s.O.Cols)
	s.RStd = r.Stack.New(kernels.F32, x.Rows, m.Groups)
	dev.GateThenNorm(y, s.RStd, s.O, in.z, m.Norm.W.W, m.Groups, m.Norm.Eps)
	out := m.Out.forward(r, y, nil, k, layerOutput, &s.OutIn)
	if !k.saves() {
		return out, nil
	}
	return out, s
}

// Backward is dx from dy.
func (s *MambaSaved) Backward(r *parallel.Rank, dy kernels.Tensor, b *Batch) kernels.Tensor {
	dev, m := s.layer.ops.mamba, s.layer
	segments := b.Layout.Segments
	dnormed := m.Out.Backward(r, dy, nil, b.Segments, &s.OutIn)
	din := r.Stack.New(dy.DType, dy.Rows, s.In.Cols)
	in, d := m.split(s.In), m.split(din)
	do := r.Stack.New(dy.DType, dy.Rows, s.O.Cols)
	dev.GateThenNormBackward(do, d.z, m.Norm.W.Grad, dnormed, s.O, in.z, s.RStd, m.Norm.W.W, m.Groups, segments)

	dg, dstep := r.Stack.New(kernels.F32, dy.Rows, m.Shape.Heads), r.Stack.New(kernels.F32, dy.Rows, m.Shape.Heads)
	m.recurBackward(r, d.u, dg, dstep, do, in.u, b, s)
	dev.DecayBackward(kernels.DecayOperands{A: d.a, Rate: m.Decay.Rate.Grad, Bias: m.Decay.Bias.Grad}, dg, dstep, s.G,
		kernels.DecayOperands{A: in.a, Rate: m.Decay.Rate.W, Bias: m.Decay.Bias.W}, m.Decay.Lo, m.Decay.Hi, segments)
	return m.In.Backward(r, din, nil, b.Segments, &s.InIn)
}

// recur is the convolution of u, and unless it is done the state space, which writes O.
func (m *Mamba) recur(r *parallel.Rank, u kernels.Tensor, done bool, b *Batch, s *MambaSaved) {
	dev := m.ops.mamba
	if b.Context != nil {
		if !done { // else Backward convolves by itself
			m.recurHeads(r, u, b, s)
		}
		return
	}
	chunks, conv := recurrentState(b, m.Block)
	bias, _ := m.convBias()
	s.XBC = r.Stack.New(u.DType, u.Rows, u.Cols)
	dev.ShortConv(s.XBC, u, m.Conv.W, bias, conv, b.Layout)
	if !done {
		values, keys, queries := m.heads(s.XBC)
		dev.StateSpace(s.O, kernels.StateSpaceOperands{C: queries, B: keys, X: values, G: s.G, DT: s.Step,
			Skip: m.Skip.W}, chunks, b.Layout, m.Shape)
	}
}

// recurBackward writes du, dg and dstep from the gradient of O.
func (m *Mamba) recurBackward(r *parallel.Rank, du, dg, dstep, do, u kernels.Tensor, b *Batch, s *MambaSaved) {
	if b.Context != nil {
		m.recurHeadsBackward(r, du, dg, dstep, do, u, b, s)
		return
	}
	dev, dxbc := m.ops.mamba, r.Stack.New(do.DType, do.Rows, s.XBC.Cols)
	values, keys, queries := m.heads(s.XBC)
	dvalues, dkeys, dqueries := m.heads(dxbc)
	dev.StateSpaceBackward(kernels.StateSpaceOperands{C: dqueries, B: dkeys, X: dvalues, G: dg, DT: dstep,
		Skip: m.Skip.Grad}, do, kernels.StateSpaceOperands{C: queries, B: keys, X: values, G: s.G, DT: s.Step,
		Skip: m.Skip.W}, b.Layout, m.Shape)
	bias, dbias := m.convBias()
	dev.ShortConvBackward(du, m.Conv.Grad, dbias, dxbc, u, m.Conv.W, bias, b.Layout)
}

// recurHeads is recur where ranks divide the heads.
func (m *Mamba) recurHeads(r *parallel.Rank, u kernels.Tensor, b *Batch, s *MambaSaved) {
	defer r.Stack.Release(r.Stack.Mark())
	values, keys, queries := m.heads(u)
	own := b.toHeads(r, values, keys, queries, s.G, s.Step)
	c := b.convolve(r, m.ops.mamba, own[:3], m.Conv, m.ConvBias)
	o := r.Stack.New(s.O.DType, own[0].Rows, own[0].Cols)
	m.ops.mamba.StateSpace(o, kernels.StateSpaceOperands{C: c[2], B: c[1], X: c[0], G: own[3], DT: own[4],
		Skip: b.ownColumns(r, m.Skip.W)}, nil, b.sequences(), b.recurrenceOf(m.Shape))
	b.toRows(r, parallel.Pair{Dst: s.O, Src: o})
}

func (m *Mamba) recurHeadsBackward(r *parallel.Rank, du, dg, dstep, do, u kernels.Tensor, b *Batch, s *MambaSaved) {
	defer r.Stack.Release(r.Stack.Mark())
	values, keys, queries := m.heads(u)
	own := b.toHeads(r, values, keys, queries, s.G, s.Step, do)
	parts := own[:3]
	c := b.convolve(r, m.ops.mamba, parts, m.Conv, m.ConvBias)
	dc, rest := like(r, c...), like(r, own[3], own[4])
	skip := b.ownColumns(r, m.Skip.W)
	dskip := b.headSums(r, m.Skip, 1, skip.Cols)
	m.ops.mamba.StateSpaceBackward(kernels.StateSpaceOperands{C: dc[2], B: dc[1], X: dc[0], G: rest[0], DT: rest[1],
		Skip: dskip}, own[5], kernels.StateSpaceOperands{C: c[2], B: c[1], X: c[0], G: own[3], DT: own[4], Skip: skip},
		b.sequences(), b.recurrenceOf(m.Shape))
	b.addHeadSums(r, m.Skip, dskip)
	dvalues, dkeys, dqueries := m.heads(du)
	b.convolveBackward(r, m.ops.mamba, []kernels.Tensor{dvalues, dkeys, dqueries}, dc, parts, m.Conv, m.ConvBias)
	b.toRows(r, parallel.Pair{Dst: dg, Src: rest[0]}, parallel.Pair{Dst: dstep, Src: rest[1]})
}

func (m *Mamba) contextHeads() (n int, key string) { return m.Shape.KeyHeads, "n_groups" }
