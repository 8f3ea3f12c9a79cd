package model

import (
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/quant"
)

// Linear is y = x W^T for one weight that may stack several projections of the same input (q, k and v), or the experts
// of a layer (grouped). A projection may carry a LoRA adapter. Each output element is one dot chain: over the base
// weight, then on over its adapter's rank, rounded once. A bias is added after the rounding.
type Linear struct {
	W     *Param // [groups, N, K]
	Subs  []*Sub
	Fused bool // experts: the adapter is on the whole weight, as one parameter

	byHead bool // attention reads the weight as a matrix for each head, see [HeadLinear]
	ops    *operations

	// [groups, sum of ranks, K]: the A of its adapters one below the other, in the order of Subs, so that one product
	// has all their U; nil: no adapters
	A kernels.Tensor
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

// LoRA is a low-rank update of a projection (Hu et al., arXiv 2106.09685): y += Scale * (x A^T) B^T. A is [groups, r,
// K], rows of the Linear's; B is [groups, N, r].
type LoRA struct {
	A, B  *Param
	Scale float32 // alpha / r
	layer uint32  // its number among the model's: part of the key of its dropout
}

// LinearSaved is what Backward needs. X is what adapters have read, and Read what the weight has, which is X rounded by
// Definition.Acts. U is round(Scale * round(x A^T)) of all adapters, [T, sum of ranks]; nil without one. All are nil
// where no weight of the Linear is trained. With dropout each adapter has an X of its own.
type LinearSaved struct {
	X, Read, U kernels.Tensor
	dropout    *Dropout

	dy, du kernels.Tensor // what inputGrad leaves for weightGrads
}

// inputUse says who has read the input of a Linear, or will.
type inputUse int

const (
	sharedInput  inputUse = iota
	ownInput              // nothing else reads it: it may be rounded in its place
	roundedInput          // nothing else reads it, and it is rounded already
)

// rounding is what an operand of products with the weight is rounded to by a setting of the definition.
func (l *Linear) rounding(r *parallel.Rank, by func(kernels.Definition) quant.Encoding) quant.Encoding {
	if !l.W.coded {
		return quant.AsTrained
	}
	return by(r.Dev.Definition())
}

func acts(d kernels.Definition) quant.Encoding  { return d.Acts }
func grads(d kernels.Definition) quant.Encoding { return d.Grads }

// fakeQuantized is a copy of x that is rounded, or x itself where it is not.
func (l *Linear) fakeQuantized(r *parallel.Rank, x kernels.Tensor, e quant.Encoding) kernels.Tensor {
	if e == quant.AsTrained {
		return x
	}
	out := r.Stack.New(x.DType, x.Rows, x.Cols)
	l.ops.coder.FakeQuantize(out, x, e)
	return out
}

// multiplyRead writes y, unless it is done, from what the weight reads of an input x and U of all adapters, and returns
// what it reads as numbers, where the weight is trained.
func (l *Linear) multiplyRead(r *parallel.Rank, y, x kernels.Tensor, u projected, g *kernels.Groups, use inputUse,
	done bool) (read kernels.Tensor) {
	if done && !l.W.Trained() {
		return read
	}
	if l.rounding(r, acts) == quant.FP8x128 {
		return l.multiplyCodes(r, y, x, u, g, done)
	}
	mark := r.Stack.Mark()
	read = l.read(r, x, use)
	if !done {
		l.multiply(r, y, l.W.term(read), u, g)
	}
	if l.W.Trained() {
		return read
	}
	r.Stack.Release(mark)
	return kernels.Tensor{}
}

// multiplyCodes is multiplyRead of the codes of x.
func (l *Linear) multiplyCodes(r *parallel.Rank, y, x kernels.Tensor, u projected, g *kernels.Groups,
	done bool) (read kernels.Tensor) {
	if l.W.Trained() {
		read = r.Stack.New(x.DType, x.Rows, x.Cols)
	}
	defer r.Stack.Release(r.Stack.Mark())
	q := kernels.NewQuantizedWeight(quant.FP8x128.Format(), x.DType, 1, x.Rows, x.Cols, r.Stack.NewGrouped)
	l.ops.coder.QuantizeRows(q, x)
	if l.W.Trained() {
		l.ops.coder.Dequantize(read, q)
	}
	if !done {
		l.multiply(r, y, kernels.Term{X: q.Shape(), XQ: &q, Q: l.W.Q}, u, g)
	}
	return read
}

// read is what the weight reads of an input x, as numbers.
func (l *Linear) read(r *parallel.Rank, x kernels.Tensor, use inputUse) kernels.Tensor {
	e := l.rounding(r, acts)
	if use == roundedInput || e == quant.AsTrained {
		return x
	}
	if use == ownInput && l.A.IsNil() {
		l.ops.coder.FakeQuantize(x, x, e)
		return x
	}
	return l.fakeQuantized(r, x, e)
}

// roundsTokens tells whether tokens are rounded, once each, before their rows are gathered for experts. An adapter
// reads rows as they are, and codes are made of rows that are gathered.
func (l *Linear) roundsTokens(r *parallel.Rank) bool {
	return l.A.IsNil() && l.rounding(r, acts) == quant.MXFP8
}

// gathered says what rows of tokens are to forwardOf.
func (l *Linear) gathered(r *parallel.Rank) inputUse {
	if l.roundsTokens(r) {
		return roundedInput
	}
	return ownInput
}

// adapter is one with its place among those of its Linear: columns [from, to) of U.
type adapter struct {
	*Sub
	from, to int
}

func (l *Linear) adapters() []adapter {
	var all []adapter
	at := 0
	for _, s := range l.Subs {
		if s.LoRA != nil {
			all = append(all, adapter{s, at, at + s.LoRA.A.W.Rows})
			at += s.LoRA.A.W.Rows
		}
	}
	return all
}

// Forward is [T, N] from x [T, K]; g says which rows use which group, nil for a dense weight. An adapter's term of the
// product is for its projection's columns. Of k it takes the dropout alone.
func (l *Linear) Forward(r *parallel.Rank, x kernels.Tensor, g *kernels.Groups, k *Keep,
	s *LinearSaved) kernels.Tensor {
	return l.forward(r, x, g, k, 0, s)
}

// forward is Forward of a result that k may keep. Where the result is there already, only s is filled.
func (l *Linear) forward(r *parallel.Rank, x kernels.Tensor, g *kernels.Groups, k *Keep, save Save,
	s *LinearSaved) kernels.Tensor {
	return l.forwardOf(r, x.Rows, sharedInput, func() kernels.Tensor { return x }, g, k, save, s)
}

// forwardOf is forward of an input [rows, K]. The input is computed only where the product or a gradient reads it, and
// stays on the stack only for a gradient.
func (l *Linear) forwardOf(r *parallel.Rank, rows int, use inputUse, input func() kernels.Tensor, g *kernels.Groups,
	k *Keep, save Save, s *LinearSaved) kernels.Tensor {
	y, done := k.tensor(r, save, l.W.W.DType, rows, l.W.W.Rows)
	if done && !l.readsInput() {
		return y
	}
	mark := r.Stack.Mark()
	x := input()
	var u projected
	switch {
	case l.A.IsNil():
	case !done && k.drops() == nil && l.scaledAlike():
		u = projected{r.Stack.New(x.DType, x.Rows, l.A.Rows), x}
	default:
		u.all = l.project(r, x, g, k.drops())
	}
	read := l.multiplyRead(r, y, x, u, g, use, done)
	if !l.readsInput() {
		r.Stack.Release(mark)
		return y
	}
	if s != nil {
		*s = LinearSaved{X: x, Read: read, U: u.all, dropout: k.drops()}
	}
	return y
}

// projected is U of all adapters, which the product with the weight computes from x, unless it is there already: then x
// is nil.
type projected struct{ all, x kernels.Tensor }

// multiply writes y from the weight's term and U of all adapters.
func (l *Linear) multiply(r *parallel.Rank, y kernels.Tensor, base kernels.Term, u projected, g *kernels.Groups) {
	terms, adapters := []kernels.Term{base}, l.adapters()
	for _, a := range adapters {
		terms = append(terms, kernels.Term{X: u.all.ColRange(a.from, a.to), W: a.LoRA.B.W, From: a.From, To: a.To})
	}
	if u.x.IsNil() {
		r.Dev.MatMul(y, g, terms...)
	} else {
		r.Dev.MatMulLoRA(y, u.all, u.x, l.A, adapters[0].LoRA.Scale, g, terms...)
	}
	for _, sub := range l.Subs {
		if sub.Bias != nil {
			out := y.ColRange(sub.From, sub.To)
			r.Dev.AddBias(out, out, sub.Bias.W, g)
		}
	}
}

// scaledAlike tells whether all adapters have one scale.
func (l *Linear) scaledAlike() bool {
	all := l.adapters()
	return !slices.ContainsFunc(all, func(a adapter) bool { return a.LoRA.Scale != all[0].LoRA.Scale })
}

// project is U of all adapters: one product, or with dropout one for each.
func (l *Linear) project(r *parallel.Rank, x kernels.Tensor, g *kernels.Groups, d *Dropout) kernels.Tensor {
	u := r.Stack.New(x.DType, x.Rows, l.A.Rows)
	if d == nil {
		r.Dev.MatMul(u, g, kernels.Term{X: x, W: l.A})
	} else {
		l.eachDropped(r, x, d, func(a adapter, own kernels.Tensor) {
			r.Dev.MatMul(u.ColRange(a.from, a.to), nil, kernels.Term{X: own, W: a.LoRA.A.W})
		})
	}
	l.scale(r, u)
	return u
}

// scale multiplies U, or its gradient, by the scale of each adapter: neighbours with the same one at once.
func (l *Linear) scale(r *parallel.Rank, u kernels.Tensor) {
	all := l.adapters()
	for i := 0; i < len(all); {
		first := all[i]
		for i++; i < len(all) && all[i].LoRA.Scale == first.LoRA.Scale; i++ {
		}
		of := u.ColRange(first.from, all[i-1].to)
		r.Dev.Scale(of, of, first.LoRA.Scale)
	}
}

// Backward is dx [T, K] from dy [T, N]; weight gradients accumulate. rows are the groups of the batch's rows: those of
// Forward for experts, the segments for a dense weight.
func (l *Linear) Backward(r *parallel.Rank, dy kernels.Tensor, g, rows *kernels.Groups, s *LinearSaved) kernels.Tensor {
	dx := r.Stack.New(dy.DType, dy.Rows, l.W.W.Cols)
	defer r.Stack.Release(r.Stack.Mark())
	l.writeInputGrad(r, dx, dy, g, s)
	l.weightGrads(r, linearRows{s, rows})
	return dx
}

// inputGrad is Backward that leaves weight gradients to weightGrads, and what these read on the stack.
func (l *Linear) inputGrad(r *parallel.Rank, dy kernels.Tensor, g *kernels.Groups, s *LinearSaved) kernels.Tensor {
	dx := r.Stack.New(dy.DType, dy.Rows, l.W.W.Cols)
	l.writeInputGrad(r, dx, dy, g, s)
	return dx
}

// writeInputGrad writes dx. Its chain runs over N, then over the ranks of all adapters as one term (with dropout each
// adapter's part is rounded and added): by tc16 its steps of 16 are those of a term for each adapter only where ranks
// are multiples of 16.
func (l *Linear) writeInputGrad(r *parallel.Rank, dx, dy kernels.Tensor, g *kernels.Groups, s *LinearSaved) {
	s.dy = dy
	if !l.A.IsNil() {
		s.du = l.adapterInputGrad(r, dy, g)
	}
	mark := r.Stack.Mark()
	terms := []kernels.Term{l.W.term(l.fakeQuantized(r, dy, l.rounding(r, grads)))}
	if !l.A.IsNil() && s.dropout == nil {
		terms = append(terms, kernels.Term{X: s.du, W: l.A})
	}
	r.Dev.MatMulT(dx, g, terms...)
	r.Stack.Release(mark)
	if !l.A.IsNil() && s.dropout != nil {
		l.addDropped(r, dx, s.du, s.dropout)
	}
}

// linearRows is what a forward has saved of some rows, and their groups.
type linearRows struct {
	*LinearSaved
	groups *kernels.Groups
}

// weightGrads adds the gradients of all weights behind inputGrad, of the first rows first.
func (l *Linear) weightGrads(r *parallel.Rank, rows ...linearRows) {
	var places []kernels.GradRows
	for _, s := range rows {
		for _, sub := range l.Subs {
			if sub.Bias != nil && sub.Bias.Trained() {
				r.Dev.BiasGrad(sub.Bias.Grad, s.dy.ColRange(sub.From, sub.To), s.groups)
			}
		}
		if !l.A.IsNil() {
			l.adapterGrads(r, s.groups, s.LinearSaved)
		}
		places = append(places, kernels.GradRows{DY: s.dy, X: s.Read, Groups: s.groups})
	}
	l.weightGrad(r, places...)
}

// weightGrad adds the gradient of the weight, from what forward read: places of rows one after the other.
func (l *Linear) weightGrad(r *parallel.Rank, places ...kernels.GradRows) {
	if !l.W.Trained() || len(places) == 0 {
		return
	}
	defer r.Stack.Release(r.Stack.Mark())
	if l.rounding(r, grads) != quant.AsTrained {
		for i := range places {
			p := &places[i]
			for _, x := range []*kernels.Tensor{&p.DY, &p.X} {
				out := r.Stack.New(x.DType, x.Rows, x.Cols)
				l.ops.coder.FakeQuantizeRows(out, *x, p.Groups)
				*x = out
			}
		}
	}
	first := places[0]
	r.WeightGrad(l.W.Grad, first.DY, first.X, l.W.groups(first.Groups), places[1:]...)
}

// adapterInputGrad is the gradient of x A^T of all adapters, round(Scale * round(dy B)), [T, sum of ranks].
func (l *Linear) adapterInputGrad(r *parallel.Rank, dy kernels.Tensor, g *kernels.Groups) kernels.Tensor {
	du := r.Stack.New(dy.DType, dy.Rows, l.A.Rows)
	for _, a := range l.adapters() {
		r.Dev.MatMulT(du.ColRange(a.from, a.to), g, kernels.Term{X: dy.ColRange(a.From, a.To), W: a.LoRA.B.W})
	}
	l.scale(r, du)
	return du
}

// adapterGrads adds the gradients of the adapters.
func (l *Linear) adapterGrads(r *parallel.Rank, rows *kernels.Groups, s *LinearSaved) {
	all := l.adapters()
	for _, a := range all {
		weightGrad(r, a.LoRA.B, s.dy.ColRange(a.From, a.To), s.U.ColRange(a.from, a.to), rows)
	}
	if s.dropout != nil {
		l.eachDropped(r, s.X, s.dropout, func(a adapter, own kernels.Tensor) {
			weightGrad(r, a.LoRA.A, s.du.ColRange(a.from, a.to), own, rows)
		})
		return
	}
	for _, a := range all {
		weightGrad(r, a.LoRA.A, s.du.ColRange(a.from, a.to), s.X, rows)
	}
}

func weightGrad(r *parallel.Rank, p *Param, dy, x kernels.Tensor, rows *kernels.Groups) {
	if p.Trained() {
		r.WeightGrad(p.Grad, dy, x, p.groups(rows))
	}
}
