package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

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
