package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// MLP is the dense feed-forward y = (silu(x Wg) * (x Wu)) Wd (Shazeer, arXiv 2002.05202).
type MLP struct {
	GateUp *Linear // [2I, H], gate rows first
	Down   *Linear // [H, I]
}

// MLPSaved keeps what Backward needs; GateUp [R, 2I] is before the activation.
type MLPSaved struct {
	GateUpIn, DownIn LinearSaved
	GateUp           kernels.Tensor
}

// Forward is [T, H] from x [T, H].
func (m *MLP) Forward(r *parallel.Rank, x kernels.Tensor, _ *Batch, keep bool) (kernels.Tensor, any) {
	s := new(MLPSaved)
	y := m.forward(r, x, nil, s)
	if !keep {
		return y, nil
	}
	return y, s
}

// Backward is dx from dy.
func (m *MLP) Backward(r *parallel.Rank, dy kernels.Tensor, b *Batch, saved any) kernels.Tensor {
	return m.backward(r, dy, nil, b.Packs, saved.(*MLPSaved))
}

// forward is [R, H] from x [R, H]; g says which rows go to which expert, nil for a dense MLP.
func (m *MLP) forward(r *parallel.Rank, x kernels.Tensor, g *kernels.Groups, s *MLPSaved) kernels.Tensor {
	s.GateUp = m.GateUp.Forward(r, x, g, &s.GateUpIn)
	h := r.Stack.New(x.DType, x.Rows, s.GateUp.Cols/2)
	r.Dev.SwiGLU(h, s.GateUp)
	return m.Down.Forward(r, h, g, &s.DownIn)
}

// backward is dx from dy; g and rows as in [Linear.Backward].
func (m *MLP) backward(r *parallel.Rank, dy kernels.Tensor, g, rows *kernels.Groups, s *MLPSaved) kernels.Tensor {
	dh := m.Down.Backward(r, dy, g, rows, &s.DownIn)
	dgu := r.Stack.New(dy.DType, dy.Rows, s.GateUp.Cols)
	r.Dev.SwiGLUBackward(dgu, dh, s.GateUp)
	return m.GateUp.Backward(r, dgu, g, rows, &s.GateUpIn)
}

// Linears are both projections.
func (m *MLP) Linears() []*Linear { return []*Linear{m.GateUp, m.Down} }

// Idle is 0.
func (m *MLP) Idle() int { return 0 }
