package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// MoE is a mixture of experts: a softmax router picks TopK of E experts for each token, each an MLP, and their outputs are added
// by weight. Rows are (token, slot) pairs sorted by expert, so each weight is used once; no row is ever dropped.
type MoE struct {
	Router  *Param // [E, H]
	Experts *MLP   // grouped weights [E, 2I, H] and [E, H, I]
	TopK    int
	Norm    bool // weights of the chosen experts are divided by their sum
}

// MoESaved keeps what Backward needs; R = T*TopK.
type MoESaved struct {
	X              kernels.Tensor // [T, H]
	Probs          kernels.Tensor // [T, E]
	Weights, Picks kernels.Tensor // [T, TopK]
	Plan           kernels.Plan
	Experts        MLPSaved
	Y              kernels.Tensor // [R, H]
}

// Forward is [T, H] from x [T, H].
func (m *MoE) Forward(r *parallel.Rank, x kernels.Tensor, b *Batch, keep bool) (kernels.Tensor, any) {
	s := &MoESaved{X: x}
	e, rows := m.Router.W.Rows, x.Rows*m.TopK
	logits := r.Stack.New(kernels.F32, x.Rows, e)
	r.Dev.MatMul(logits, nil, kernels.Term{X: x, W: m.Router.W})
	s.Probs = r.Stack.New(kernels.F32, x.Rows, e)
	s.Weights = r.Stack.New(kernels.F32, x.Rows, m.TopK)
	s.Picks = r.Stack.New(kernels.I32, x.Rows, m.TopK)
	r.Dev.Route(s.Weights, s.Picks, s.Probs, logits, m.Norm)

	packs := b.Packs.Packs
	s.Plan = kernels.Plan{
		Groups: kernels.Groups{Offsets: r.Stack.New(kernels.I32, 1, e*packs+1), Count: e, Packs: packs},
		Source: r.Stack.New(kernels.I32, 1, rows),
		RowOf:  r.Stack.New(kernels.I32, x.Rows, m.TopK),
	}
	r.Dev.Dispatch(s.Plan, s.Picks, b.Layout.Packs)
	xs := r.Stack.New(x.DType, rows, x.Cols)
	r.Dev.Gather(xs, x, s.Plan.Source)
	s.Y = m.Experts.forward(r, xs, &s.Plan.Groups, &s.Experts)
	out := r.Stack.New(x.DType, x.Rows, x.Cols)
	r.Dev.Combine(out, s.Y, s.Weights, s.Plan.RowOf)
	if !keep {
		return out, nil
	}
	return out, s
}

// Backward is dx from dout. The selection has no gradient; the router's comes through the weights.
func (m *MoE) Backward(r *parallel.Rank, dout kernels.Tensor, b *Batch, saved any) kernels.Tensor {
	s := saved.(*MoESaved)
	g := &s.Plan.Groups
	dy := r.Stack.New(dout.DType, s.Y.Rows, s.Y.Cols)
	dweights := r.Stack.New(kernels.F32, s.Weights.Rows, s.Weights.Cols)
	r.Dev.CombineBackward(dy, dweights, dout, s.Y, s.Weights, s.Plan.RowOf)
	dxs := m.Experts.backward(r, dy, g, g, &s.Experts)
	dx := r.Stack.New(dout.DType, dout.Rows, dout.Cols)
	r.Dev.Combine(dx, dxs, kernels.Tensor{}, s.Plan.RowOf)

	dprobs := r.Stack.New(kernels.F32, s.Probs.Rows, s.Probs.Cols)
	r.Dev.RouteBackward(dprobs, dweights, s.Weights, s.Picks, s.Probs, m.Norm)
	dlogits := r.Stack.New(dout.DType, s.Probs.Rows, s.Probs.Cols)
	r.Dev.Copy(dlogits, dprobs)
	weightGrad(r, m.Router, dlogits, s.X, b.Packs)
	dxr := r.Stack.New(dout.DType, dout.Rows, dout.Cols)
	r.Dev.MatMulT(dxr, nil, kernels.Term{X: dlogits, W: m.Router.W})
	r.Dev.Add(dx, dx, dxr)
	return dx
}

// Linears are those of the experts.
func (m *MoE) Linears() []*Linear { return m.Experts.Linears() }

// Idle counts the experts that a token is not sent to.
func (m *MoE) Idle() (n int) {
	for _, l := range m.Experts.Linears() {
		n += (l.W.W.Groups - m.TopK) * l.W.W.Rows * l.W.W.Cols
	}
	return n
}
