package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

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
	s.Gate = m.Gate.Forward(r, x, nil, &s.GateIn)
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
