package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// MLP is the feed-forward y = act(x Wgu) Wd. The activation SwiGLU makes it (silu(x Wg) * (x Wu)) Wd (Shazeer, arXiv
// 2002.05202).
type MLP struct {
	GateUp *Linear // [2I, H], gate rows first
	Act    Activation
	Down   *Linear // [H, I]
}

// Activation is what an MLP does between its projections, row by row.
type Activation interface {
	// Width is the number of output columns for n input columns.
	Width(n int) int
	Forward(d kernels.Device, out, x kernels.Tensor)
	Backward(d kernels.Device, dx, dout, x kernels.Tensor)
}

// MLPSaved is what Backward needs of a Forward; GateUp [R, 2I] is before the activation.
type MLPSaved struct {
	layer            *MLP
	GateUpIn, DownIn LinearSaved
	GateUp           kernels.Tensor
}

// Forward is [T, H] from x [T, H].
func (m *MLP) Forward(r *parallel.Rank, x kernels.Tensor, _ *Batch, k *Keep) (kernels.Tensor, LayerSaved) {
	s := new(MLPSaved)
	y := m.forward(r, x, nil, k, layerOutput, s)
	if !k.saves() {
		return y, nil
	}
	return y, s
}

// Backward is dx from dy.
func (s *MLPSaved) Backward(r *parallel.Rank, dy kernels.Tensor, b *Batch) kernels.Tensor {
	return s.backward(r, dy, nil, b.Segments)
}

// forward is [R, H] from x [R, H]; g says which rows go to which expert, nil for a dense MLP, and output what the
// result is to k.
func (m *MLP) forward(r *parallel.Rank, x kernels.Tensor, g *kernels.Groups, k *Keep, output Save,
	s *MLPSaved) kernels.Tensor {
	return m.forwardOf(r, x.Rows, sharedInput, func() kernels.Tensor { return x }, g, k, output, s)
}

// forwardOf is forward of an input that is computed where it is read (see Linear).
func (m *MLP) forwardOf(r *parallel.Rank, rows int, use inputUse, x func() kernels.Tensor, g *kernels.Groups, k *Keep,
	output Save, s *MLPSaved) kernels.Tensor {
	s.layer = m
	s.GateUp = m.GateUp.forwardOf(r, rows, use, x, g, k, SaveGateUp, &s.GateUpIn)
	return m.Down.forwardOf(r, rows, ownInput, func() kernels.Tensor {
		h := r.Stack.New(s.GateUp.DType, rows, m.Act.Width(s.GateUp.Cols))
		m.Act.Forward(r.Dev, h, s.GateUp)
		return h
	}, g, k, output, &s.DownIn)
}

// backward is dx from dy; g and rows as in [Linear.Backward].
func (s *MLPSaved) backward(r *parallel.Rank, dy kernels.Tensor, g, rows *kernels.Groups) kernels.Tensor {
	dx := s.inputGrad(r, dy, g)
	s.layer.weightGrads(r, mlpRows{s, rows})
	return dx
}

// inputGrad is backward that leaves weight gradients to weightGrads, and what these read on the stack.
func (s *MLPSaved) inputGrad(r *parallel.Rank, dy kernels.Tensor, g *kernels.Groups) kernels.Tensor {
	m := s.layer
	dh := m.Down.inputGrad(r, dy, g, &s.DownIn)
	dgu := r.GradStack().New(dy.DType, dy.Rows, s.GateUp.Cols)
	m.Act.Backward(r.Dev, dgu, dh, s.GateUp)
	return m.GateUp.inputGrad(r, dgu, g, &s.GateUpIn)
}

// mlpRows is what a forward has saved of some rows, and their groups.
type mlpRows struct {
	*MLPSaved
	groups *kernels.Groups
}

// weightGrads adds the gradients of weights behind inputGrad, of the first rows first.
func (m *MLP) weightGrads(r *parallel.Rank, rows ...mlpRows) {
	var down, gateUp []linearRows
	for _, s := range rows {
		down = append(down, linearRows{&s.DownIn, s.groups})
		gateUp = append(gateUp, linearRows{&s.GateUpIn, s.groups})
	}
	m.Down.weightGrads(r, down...)
	m.GateUp.weightGrads(r, gateUp...)
}

// Linears are both projections.
func (m *MLP) Linears() []*Linear { return []*Linear{m.GateUp, m.Down} }

// work is that of both projections.
func (m *MLP) work(e Extent) (w work) {
	w.product(SaveGateUp, m.GateUp, e.Rows)
	w.output = m.Down.flops(e.Rows)
	return w
}

// Idle is 0.
func (m *MLP) Idle() int { return 0 }

// SwiGLU is silu(gate) * up.
type SwiGLU struct{}

func (SwiGLU) Width(n int) int                                       { return n / 2 }
func (SwiGLU) Forward(d kernels.Device, out, x kernels.Tensor)       { d.SwiGLU(out, x) }
func (SwiGLU) Backward(d kernels.Device, dx, dout, x kernels.Tensor) { d.SwiGLUBackward(dx, dout, x) }

// ReLU2 is max(x, 0)^2 (So et al., arXiv 2109.08668), without a gate: GateUp is [I, H].
type ReLU2 struct{ ops *operations }

func (ReLU2) Width(n int) int                                   { return n }
func (a ReLU2) Forward(_ kernels.Device, out, x kernels.Tensor) { a.ops.mamba.ReLU2(out, x) }
func (a ReLU2) Backward(_ kernels.Device, dx, dout, x kernels.Tensor) {
	a.ops.mamba.ReLU2Backward(dx, dout, x)
}

// ClampedSwiGLU is that of gpt-oss, (gate * sigmoid(alpha gate)) * (up + 1) of clamped gates and ups.
type ClampedSwiGLU struct{ kernels.Clamp }

func (ClampedSwiGLU) Width(n int) int { return n / 2 }
func (c ClampedSwiGLU) Forward(d kernels.Device, out, x kernels.Tensor) {
	d.ClampedSwiGLU(out, x, c.Clamp)
}
func (c ClampedSwiGLU) Backward(d kernels.Device, dx, dout, x kernels.Tensor) {
	d.ClampedSwiGLUBackward(dx, dout, x, c.Clamp)
}

// GatedMLP is an MLP whose output is scaled by a gate of its own for each token: y = MLP(x) * sigm(x Wg). It is the
// shared expert of Qwen's mixtures.
type GatedMLP struct {
	MLP  *MLP
	Gate *Linear // [1, H]
	ops  *operations
}

// GatedMLPSaved is what Backward needs of a Forward.
type GatedMLPSaved struct {
	layer  *GatedMLP
	MLP    MLPSaved
	GateIn LinearSaved
	Y      kernels.Tensor // [T, H], before the gate
	Gate   kernels.Tensor // [T, 1], before the sigmoid
}

// Forward is [T, H] from x [T, H].
func (m *GatedMLP) Forward(r *parallel.Rank, x kernels.Tensor, _ *Batch, k *Keep) (kernels.Tensor, LayerSaved) {
	s := &GatedMLPSaved{layer: m}
	s.Y = m.MLP.forward(r, x, nil, k, SaveExperts, &s.MLP)
	s.Gate = m.Gate.Forward(r, x, nil, k, &s.GateIn)
	y, done := k.tensor(r, layerOutput, x.DType, x.Rows, s.Y.Cols)
	if !done {
		m.ops.delta.SigmoidGate(y, s.Y, s.Gate)
	}
	if !k.saves() {
		return y, nil
	}
	return y, s
}

// Backward is dx from dy.
func (s *GatedMLPSaved) Backward(r *parallel.Rank, dy kernels.Tensor, b *Batch) kernels.Tensor {
	m := s.layer
	inner, gate := r.Stack.New(dy.DType, dy.Rows, dy.Cols), r.Stack.New(dy.DType, dy.Rows, 1)
	m.ops.delta.SigmoidGateBackward(inner, gate, dy, s.Y, s.Gate)
	dx := s.MLP.backward(r, inner, nil, b.Segments)
	r.Dev.Add(dx, dx, m.Gate.Backward(r, gate, nil, b.Segments, &s.GateIn))
	return dx
}

// Linears are those of the MLP and the gate.
func (m *GatedMLP) Linears() []*Linear { return append(m.MLP.Linears(), m.Gate) }

// work is that of the MLP and of the gate.
func (m *GatedMLP) work(e Extent) (w work) {
	w.product(SaveGateUp, m.MLP.GateUp, e.Rows)
	w.product(SaveExperts, m.MLP.Down, e.Rows)
	w.again = m.Gate.flops(e.Rows)
	return w
}

// Idle is 0.
func (m *GatedMLP) Idle() int { return 0 }
