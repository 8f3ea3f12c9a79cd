package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// HeadLinear is rows of a Linear as a matrix for each head, W_h [n, K]: up is y_h = x_h W_h^T, down is x_h = y_h W_h.
// Rows of x [T*heads, K] and y [T*heads, n] are the heads of a token, then those of the next. An adapter (A one for all
// heads, B_h [n, r]) continues each chain, as in Linear.
type HeadLinear struct {
	of    *Linear
	from  int // the row of head 0
	Heads int
	Rows  int // n
}

// HeadSaved is what up or down keeps of the adapter: round(Scale * round(x A^T)) of up, or round(Scale * round(y B)) of
// down, [T*heads, r]; nil without one.
type HeadSaved struct{ U kernels.Tensor }

func (p *HeadLinear) heads(t kernels.Tensor) kernels.Tensor {
	return t.Stacked(p.from, p.Heads, p.Rows)
}

func (p *HeadLinear) groups() *kernels.Groups {
	return &kernels.Groups{Count: p.Heads, Interleaved: true}
}

// adapter is the projection's; nil: none.
func (p *HeadLinear) adapter() *LoRA { return p.of.Subs[0].LoRA }

// up writes y from x.
func (p *HeadLinear) up(r *parallel.Rank, y, x kernels.Tensor, s *HeadSaved) {
	terms := []kernels.Term{{X: x, W: p.heads(p.of.W.W)}}
	if a := p.adapter(); a != nil {
		u := p.of.project(r, x, nil, nil)
		terms = append(terms, kernels.Term{X: u, W: p.heads(a.B.W)})
		*s = HeadSaved{u}
	}
	r.Dev.MatMul(y, p.groups(), terms...)
}

// down writes x from y.
func (p *HeadLinear) down(r *parallel.Rank, x, y kernels.Tensor, s *HeadSaved) {
	terms := []kernels.Term{{X: y, W: p.heads(p.of.W.W)}}
	if a := p.adapter(); a != nil {
		u := r.Stack.New(y.DType, y.Rows, a.A.W.Rows)
		r.Dev.MatMulT(u, p.groups(), kernels.Term{X: y, W: p.heads(a.B.W)})
		r.Dev.Scale(u, u, a.Scale)
		terms = append(terms, kernels.Term{X: u, W: a.A.W})
		*s = HeadSaved{u}
	}
	r.Dev.MatMulT(x, p.groups(), terms...)
}

// weightGrads adds the gradients of weights that each head has of its own. They are the same whether forward was up or
// down:
// dW_h = y_h^T x_h, dB_h = y_h^T up_h.
func (p *HeadLinear) weightGrads(r *parallel.Rank, y, x kernels.Tensor, up *HeadSaved, b *Batch) {
	p.weightGrad(r, p.of.W, y, x, b)
	if a := p.adapter(); a != nil {
		p.weightGrad(r, a.B, y, up.U, b)
	}
}

func (p *HeadLinear) weightGrad(r *parallel.Rank, w *Param, dy, x kernels.Tensor, b *Batch) {
	if !w.Trained() {
		return
	}
	if !b.apart() {
		r.Dev.WeightGrad(p.heads(w.Grad), dy, x, p.interleaved(b.Segments))
		return
	}
	b.eachSegment(func(i, from, to int) {
		from, to = from*p.Heads, to*p.Heads
		r.Dev.WeightGrad(p.heads(w.Grad.Group(i)), dy.RowRange(from, to), x.RowRange(from, to),
			p.interleaved(segmentOf(r, (to-from)/p.Heads, false)))
	})
}

// sharedGrad is a part of the gradient of the A that all heads share: dA += down^T x, down [T*heads, r] and x [T*heads,
// K].
type sharedGrad struct {
	of      *HeadLinear
	down, x kernels.Tensor
}

// sharedGrads adds the parts of the gradient of A, which are one sum for each segment: over every part in order, and of
// a part over its heads in order. One part over all segments before the next part would make bits depend on the
// micro-batch.
func sharedGrads(r *parallel.Rank, b *Batch, parts ...sharedGrad) {
	a := parts[0].of.adapter()
	if a == nil || !a.A.Trained() {
		return
	}
	b.eachSegment(func(i, first, end int) {
		sumSegment(r, b.gradient(a.A.Grad, i), func(sum kernels.Tensor) {
			own := segmentOf(r, end-first, true)
			for _, p := range parts {
				from, to := first*p.of.Heads, end*p.of.Heads
				r.Dev.WeightGrad(sum, p.down.RowRange(from, to), p.x.RowRange(from, to), p.of.interleaved(own))
			}
		})
	})
}

// sumSegment adds to grad the sum of one segment, which add continues, from +0, in several calls.
func sumSegment(r *parallel.Rank, grad kernels.Tensor, add func(sum kernels.Tensor)) {
	defer r.Stack.Release(r.Stack.Mark())
	sum := r.Stack.Zeros(kernels.F32, grad.Rows, grad.Cols)
	add(sum)
	r.Dev.Accumulate(grad, sum.Reshape(1, sum.Len()))
}

func (p *HeadLinear) interleaved(g *kernels.Groups) *kernels.Groups {
	return &kernels.Groups{Offsets: g.Offsets, Count: p.Heads, Segments: g.Segments, Interleaved: true, Chain: g.Chain}
}
