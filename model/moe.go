package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// MoE is a mixture of experts: a router selects TopK of E experts for each token, each an MLP, and their outputs are
// added by weight; a shared expert takes every token. Rows are (token, slot) pairs sorted by expert, so each weight is
// used once; no row is ever dropped.
type MoE struct {
	Router  *Router
	Experts *MLP // grouped weights [E, 2I, H] and [E, H, I]
	TopK    int
	Shared  Layer // takes every token; nil: none
	// Into and OutOf are projections before and behind the experts, which then work on fewer columns: [Z, H] and [H,
	// Z]; nil: none.
	Into, OutOf *Linear

	place int // among the model's mixtures, where experts are cut over ranks
}

// MoESaved is what Backward needs of a Forward; R = T*TopK.
type MoESaved struct {
	layer   *MoE
	Routing Routing
	Plan    kernels.Plan // where all experts are on this rank
	Experts MLPSaved
	Y       kernels.Tensor // [R, H]; where experts are cut over ranks no rows: the exchange has them
	Shared  LayerSaved     // nil: no shared expert

	exchange        *expertExchange // nil: all experts are on this rank
	IntoIn, OutOfIn LinearSaved
}

// Forward is [T, H] from x [T, H].
func (m *MoE) Forward(r *parallel.Rank, x kernels.Tensor, b *Batch, k *Keep) (kernels.Tensor, LayerSaved) {
	return m.forward(r, x, stream{}, b, k)
}

// addsTo tells whether the output is what Combine writes, which can add it to the residual stream then.
func (m *MoE) addsTo() bool { return m.OutOf == nil && m.Shared == nil }

// forward is Forward; with a stream, see addsTo, the sum of its x and the output.
func (m *MoE) forward(r *parallel.Rank, x kernels.Tensor, to stream, b *Batch, k *Keep) (kernels.Tensor, LayerSaved) {
	s := &MoESaved{layer: m}
	u := x
	if m.Into != nil {
		u = m.Into.Forward(r, x, nil, k, &s.IntoIn)
	}
	if m.Experts.GateUp.W.split {
		s.exchange = m.exchange(r, m.tokens(r, u), b.Layout.Segments, k)
	}
	s.Routing = m.Router.route(r, x, m.TopK)
	s.Y = m.experts(r, u, b, k, s)
	out := m.combine(r, to, k, s)
	if m.Shared != nil {
		var y kernels.Tensor
		y, s.Shared = m.Shared.Forward(r, x, b, k)
		if !k.done(layerOutput) {
			r.Dev.Add(out, out, y)
		}
	}
	if !k.saves() {
		return out, nil
	}
	return out, s
}

// experts is the outputs of the experts [R, H] for tokens u [T, H]; where they are cut over ranks no rows, and the
// exchange has them.
func (m *MoE) experts(r *parallel.Rank, u kernels.Tensor, b *Batch, k *Keep, s *MoESaved) kernels.Tensor {
	if s.exchange != nil {
		s.exchange.dispatch(r, &s.Routing, k)
		s.exchange.outputs(r, k, b, !k.done(layerOutput) || m.OutOf != nil && m.OutOf.readsInput())
		s.exchange.gatherGradients(r, b)
		return s.exchange.all.RowRange(0, 0)
	}
	s.Plan = m.plan(r, &s.Routing, b.Layout.Segments)
	return m.Experts.forwardOf(r, s.Plan.Source.Cols, m.Experts.GateUp.gathered(r), func() kernels.Tensor {
		xs := r.Stack.New(u.DType, s.Plan.Source.Cols, u.Cols)
		defer r.Stack.Release(r.Stack.Mark())
		r.Dev.Gather(xs, m.tokens(r, u), s.Plan.Source)
		return xs
	}, &s.Plan.Groups, k, SaveExperts, &s.Experts)
}

// plan is the order of the rows of this rank's tokens, by expert.
func (m *MoE) plan(r *parallel.Rank, by *Routing, segments []int32) kernels.Plan {
	e, n, rows := m.Router.W.W.Rows, len(segments)-1, by.Experts.Len()
	p := kernels.Plan{
		Groups: kernels.Groups{Offsets: r.Stack.New(kernels.I32, 1, e*n+1), Count: e, Segments: n},
		Source: r.Stack.New(kernels.I32, 1, rows),
		RowOf:  r.Stack.New(kernels.I32, by.Experts.Rows, m.TopK),
	}
	r.Dev.Dispatch(p, by.Experts, segments)
	return p
}

// tokens are inputs u [T, H] as experts read their rows, rounded where no adapter reads them too.
func (m *MoE) tokens(r *parallel.Rank, u kernels.Tensor) kernels.Tensor {
	if !m.Experts.GateUp.roundsTokens(r) {
		return u
	}
	return m.Experts.GateUp.read(r, u, sharedInput)
}

// backward is the gradients of the experts' inputs [T, n] and of the weights [T, K], from dout [T, n].
func (s *MoESaved) backward(r *parallel.Rank, dout kernels.Tensor, b *Batch) (dx, dweights kernels.Tensor) {
	w := s.Routing.Weights
	dweights = r.Stack.New(kernels.F32, w.Rows, w.Cols)
	if s.exchange != nil {
		dx = r.Stack.New(dout.DType, dout.Rows, dout.Cols)
		s.exchange.backward(r, dx, dweights, dout)
		return dx, dweights
	}
	dy := r.GradStack().New(dout.DType, s.Y.Rows, s.Y.Cols)
	r.Dev.CombineBackward(dy, dweights, dout, s.Y, w, s.Plan.RowOf, kernels.AllRows)
	dxs := s.Experts.backward(r, dy, &s.Plan.Groups, b.segmentsOf(&s.Plan.Groups))
	dx = r.Stack.New(dout.DType, dout.Rows, dout.Cols)
	r.Dev.Combine(dx, kernels.Tensor{}, dxs, kernels.Tensor{}, s.Plan.RowOf)
	return dx, dweights
}

// combine is the experts' part of the output, [T, H], or the sum of a stream and it.
func (m *MoE) combine(r *parallel.Rank, to stream, k *Keep, s *MoESaved) kernels.Tensor {
	rows := s.Routing.X.Rows
	if m.OutOf != nil {
		return m.OutOf.forwardOf(r, rows, ownInput, func() kernels.Tensor {
			sum := r.Stack.New(s.Y.DType, rows, s.Y.Cols)
			s.sum(r, sum, kernels.Tensor{})
			return sum
		}, nil, k, layerOutput, &s.OutOfIn)
	}
	out, done := to.sum, k.done(layerOutput)
	if out.IsNil() {
		out, done = k.tensor(r, layerOutput, s.Y.DType, rows, s.Y.Cols)
	}
	if !done {
		s.sum(r, out, to.x)
	}
	return out
}

// sum writes the weighted sum of the experts' outputs of each token, added to residual where that is not nil.
func (s *MoESaved) sum(r *parallel.Rank, out, residual kernels.Tensor) {
	defer r.Stack.Release(r.Stack.Mark())
	if s.exchange != nil {
		s.exchange.combine(r, out, residual, s.Routing.Weights)
		return
	}
	r.Dev.Combine(out, residual, s.Y, s.Routing.Weights, s.Plan.RowOf)
}

// Backward is dx from dout.
func (s *MoESaved) Backward(r *parallel.Rank, dout kernels.Tensor, b *Batch) kernels.Tensor {
	m := s.layer
	dsum := dout
	if m.OutOf != nil {
		dsum = m.OutOf.Backward(r, dout, nil, b.Segments, &s.OutOfIn)
	}
	dx, dweights := s.backward(r, dsum, b)
	if m.Into != nil {
		dx = m.Into.Backward(r, dx, nil, b.Segments, &s.IntoIn)
	}
	r.Dev.Add(dx, dx, m.Router.backward(r, dweights, b, &s.Routing))
	if s.Shared != nil {
		r.Dev.Add(dx, dx, s.Shared.Backward(r, dout, b))
	}
	return dx
}

// Linears are those of the experts, then of the shared one.
func (m *MoE) Linears() []*Linear {
	all := m.Experts.Linears()
	if m.Into != nil {
		all = append(all, m.Into, m.OutOf)
	}
	if m.Shared != nil {
		all = append(all, m.Shared.Linears()...)
	}
	return all
}

// work is that of the router, of the experts that a token is sent to and of the shared one.
func (m *MoE) work(e Extent) (w work) {
	rows := e.Rows * m.TopK
	w.product(SaveGateUp, m.Experts.GateUp, rows)
	w.product(SaveExperts, m.Experts.Down, rows)
	w.again = float64(2 * float64(e.Rows) * float64(m.Router.W.W.Rows) * float64(m.Router.W.W.Cols))
	if m.Into != nil {
		w.again += m.Into.flops(e.Rows)
		w.output = m.OutOf.flops(e.Rows)
	}
	if m.Shared != nil {
		w.add(m.Shared.work(e))
	}
	return w
}

// Idle counts the experts that a token is not sent to.
func (m *MoE) Idle() (n int) {
	for _, l := range m.Experts.Linears() {
		n += (l.W.matrices() - m.TopK) * l.W.W.Rows * l.W.W.Cols
		for _, s := range l.Subs {
			if s.Bias != nil {
				n += (l.W.matrices() - m.TopK) * s.Bias.W.Cols
			}
		}
	}
	return n
}

// Router selects the top-k experts of each token from fp32 logits x W^T + bias.
type Router struct {
	W        *Param // [E, H]
	Bias     *Param // [E], of the logits; nil: none
	Balance  *Param // [E] fp32, added to the scores for the selection alone, a buffer; nil: none
	Settings kernels.Router
}

// Routing is the expert indices of each token and the weights of their outputs, with what Backward needs.
type Routing struct {
	X                kernels.Tensor // [T, H]
	Probs            kernels.Tensor // [T, E]
	Weights, Experts kernels.Tensor // [T, TopK]
}

// settings are those of [kernels.Device], with the balance.
func (ro *Router) settings() kernels.Router {
	s := ro.Settings
	if ro.Balance != nil {
		s.Bias = ro.Balance.W
	}
	return s
}

func (ro *Router) route(r *parallel.Rank, x kernels.Tensor, k int) Routing {
	e := ro.W.W.Rows
	logits := r.Stack.New(kernels.F32, x.Rows, e)
	r.Dev.MatMul(logits, nil, kernels.Term{X: x, W: ro.W.W})
	if ro.Bias != nil {
		r.Dev.AddBias(logits, logits, ro.Bias.W, nil)
	}
	c := Routing{
		X: x, Probs: r.Stack.New(kernels.F32, x.Rows, e), Weights: r.Stack.New(kernels.F32, x.Rows, k),
		Experts: r.Stack.New(kernels.I32, x.Rows, k),
	}
	r.Dev.Route(c.Weights, c.Experts, c.Probs, logits, ro.settings())
	return c
}

// backward is dx from the gradient of the weights, F32 [T, TopK]. The selection has no gradient.
func (ro *Router) backward(r *parallel.Rank, dweights kernels.Tensor, b *Batch, c *Routing) kernels.Tensor {
	dprobs := r.Stack.New(kernels.F32, c.Probs.Rows, c.Probs.Cols)
	r.Dev.RouteBackward(dprobs, dweights, c.Weights, c.Experts, c.Probs, ro.settings())
	dlogits := r.Stack.New(c.X.DType, c.Probs.Rows, c.Probs.Cols)
	r.Dev.Copy(dlogits, dprobs)
	weightGrad(r, ro.W, dlogits, c.X, b.Segments)
	if ro.Bias != nil && ro.Bias.Trained() {
		r.Dev.BiasGrad(ro.Bias.Grad, dlogits, b.Segments)
	}
	dx := r.Stack.New(c.X.DType, c.X.Rows, c.X.Cols)
	r.Dev.MatMulT(dx, nil, kernels.Term{X: dlogits, W: ro.W.W})
	return dx
}
