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
func (m *MLP) Forward(r *parallel.Rank, x kernels.Tensor, g *kernels.Groups, s *MLPSaved) kernels.Tensor {
	var keep MLPSaved
	keep.GateUp = m.GateUp.Forward(r, x, g, &keep.GateUpIn)
	h := r.Stack.New(x.DType, x.Rows, keep.GateUp.Cols/2)
	r.Dev.SwiGLU(h, keep.GateUp)
	y := m.Down.Forward(r, h, g, &keep.DownIn)
	if s != nil {
		*s = keep
	}
	return y
}

// Backward is dx from dy; g and rows as in [Linear.Backward].
func (m *MLP) Backward(r *parallel.Rank, dy kernels.Tensor, g, rows *kernels.Groups, s *MLPSaved) kernels.Tensor {
	dh := m.Down.Backward(r, dy, g, rows, &s.DownIn)
	dgu := r.Stack.New(dy.DType, dy.Rows, s.GateUp.Cols)
	r.Dev.SwiGLUBackward(dgu, dh, s.GateUp)
	return m.GateUp.Backward(r, dgu, g, rows, &s.GateUpIn)
}
