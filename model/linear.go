package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Linear is y = x W^T for one weight that may stack several projections of the same input (q, k and v), or the experts of a
// layer (grouped). A projection may carry a LoRA adapter. Each output element is one dot chain: over the base weight, then
// on over the adapter's rank, rounded once. A bias is added to what was rounded.
type Linear struct {
	W     *Param // [groups, N, K]
	Subs  []*Sub
	Fused bool // experts: the adapter is on the whole weight, as one parameter
}

// Sub is one projection of a Linear: output columns [From, To).
type Sub struct {
	Module string // in the checkpoint; for experts the fused parameter's name
	From   int
	To     int
	Bias   *Param            // [groups, 1, To-From]; nil: none
	Disk   func(row int) int // where in the checkpoint a row of the projection lies; nil: in order
	LoRA   *LoRA
}

// LoRA is a low-rank update of a projection (Hu et al., arXiv 2106.09685): y += Scale * (x A^T) B^T. A is [groups, r, K], B is [groups, N, r].
type LoRA struct {
	A, B  *Param
	Scale float32 // alpha / r
}

// LinearSaved keeps what Backward needs. U has an entry for each Sub with LoRA: round(Scale * round(x A^T)), [T, r].
type LinearSaved struct {
	X kernels.Tensor
	U []kernels.Tensor
}

func (l *Linear) adapted() bool {
	for _, s := range l.Subs {
		if s.LoRA != nil {
			return true
		}
	}
	return false
}

// Forward is [T, N] from x [T, K]; g says which rows use which group, nil for a dense weight.
func (l *Linear) Forward(r *parallel.Rank, x kernels.Tensor, g *kernels.Groups, s *LinearSaved) kernels.Tensor {
	y := r.Stack.New(x.DType, x.Rows, l.W.W.Rows)
	if s != nil {
		s.X = x
	}
	base := kernels.Term{X: x, W: l.W.W}
	if !l.adapted() {
		r.Dev.MatMul(y, g, base)
	}
	for _, sub := range l.Subs {
		out, term := y, base
		if len(l.Subs) > 1 {
			out = y.ColRange(sub.From, sub.To)
			term.W = l.W.W.RowRange(sub.From, sub.To)
		}
		switch {
		case sub.LoRA != nil:
			u := sub.LoRA.project(r, x, g)
			if s != nil {
				s.U = append(s.U, u)
			}
			r.Dev.MatMul(out, g, term, kernels.Term{X: u, W: sub.LoRA.B.W})
		case l.adapted():
			r.Dev.MatMul(out, g, term)
		}
		if sub.Bias != nil {
			r.Dev.AddBias(out, out, sub.Bias.W, g)
		}
	}
	return y
}

func (a *LoRA) project(r *parallel.Rank, x kernels.Tensor, g *kernels.Groups) kernels.Tensor {
	u := r.Stack.New(x.DType, x.Rows, a.A.W.Rows)
	r.Dev.MatMul(u, g, kernels.Term{X: x, W: a.A.W})
	r.Dev.Scale(u, u, a.Scale)
	return u
}

// Backward is dx [T, K] from dy [T, N]; weight gradients accumulate. rows are the groups of the batch's rows: those of Forward
// for experts, the packs for a dense weight.
func (l *Linear) Backward(r *parallel.Rank, dy kernels.Tensor, g, rows *kernels.Groups, s *LinearSaved) kernels.Tensor {
	dx := r.Stack.New(dy.DType, dy.Rows, l.W.W.Cols)
	mark := r.Stack.Mark()
	terms := []kernels.Term{{X: dy, W: l.W.W}}
	saved := s.U
	for _, sub := range l.Subs {
		dsub := dy.ColRange(sub.From, sub.To)
		if sub.Bias != nil && sub.Bias.Trained() {
			r.Dev.BiasGrad(sub.Bias.Grad, dsub, rows)
		}
		if sub.LoRA == nil {
			continue
		}
		du := r.Stack.New(dy.DType, dy.Rows, sub.LoRA.A.W.Rows)
		r.Dev.MatMulT(du, g, kernels.Term{X: dsub, W: sub.LoRA.B.W})
		r.Dev.Scale(du, du, sub.LoRA.Scale)
		weightGrad(r, sub.LoRA.B, dsub, saved[0], rows)
		weightGrad(r, sub.LoRA.A, du, s.X, rows)
		terms = append(terms, kernels.Term{X: du, W: sub.LoRA.A.W})
		saved = saved[1:]
	}
	r.Dev.MatMulT(dx, g, terms...)
	weightGrad(r, l.W, dy, s.X, rows)
	r.Stack.Release(mark)
	return dx
}

func weightGrad(r *parallel.Rank, p *Param, dy, x kernels.Tensor, rows *kernels.Groups) {
	if p.Trained() {
		r.Dev.WeightGrad(p.Grad, dy, x, rows)
	}
}
