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
	return m.forwardOf(r, x.Rows, func() kernels.Tensor { return x }, g, k, output, s)
}

// forwardOf is forward of an input that nothing else reads (see Linear).
func (m *MLP) forwardOf(r *parallel.Rank, rows int, x func() kernels.Tensor, g *kernels.Groups, k *Keep, output Save,
	s *MLPSaved) kernels.Tensor {
	s.layer = m
	s.GateUp = m.GateUp.forwardOf(r, rows, x, g, k, SaveGateUp, &s.GateUpIn)
	return m.Down.forwardOf(r, rows, func() kernels.Tensor {
		h := r.Stack.New(s.GateUp.DType, rows, m.Act.Width(s.GateUp.Cols))
		m.Act.Forward(r.Dev, h, s.GateUp)
		return h
	}, g, k, output, &s.DownIn)
}

// backward is dx from dy; g and rows as in [Linear.Backward].
func (s *MLPSaved) backward(r *parallel.Rank, dy kernels.Tensor, g, rows *kernels.Groups) kernels.Tensor {
	m := s.layer
	dh := m.Down.Backward(r, dy, g, rows, &s.DownIn)
	dgu := r.Stack.New(dy.DType, dy.Rows, s.GateUp.Cols)
	m.Act.Backward(r.Dev, dgu, dh, s.GateUp)
	return m.GateUp.Backward(r, dgu, g, rows, &s.GateUpIn)
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
