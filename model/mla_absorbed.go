package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// absorbedSaved is what Backward needs of absorbed attention.
type absorbedSaved struct {
	Q       kernels.Tensor // [T, Heads*(n+r)]: queries before a head's weight of keys
	O       kernels.Tensor // [T, Heads*v]: what a head's weight of values makes of attention's output
	KeyDown HeadSaved
	ValueUp HeadSaved
}

// keyHeads and valueHeads are the weights of each head's keys and values.
func (a *MLA) keyHeads() *HeadLinear {
	return &HeadLinear{of: a.KV, Heads: a.Shape.Heads, Rows: a.NopeDim}
}

func (a *MLA) valueHeads() *HeadLinear {
	own := a.Shape.Heads * a.NopeDim
	return &HeadLinear{of: a.KV, from: own, Heads: a.Shape.Heads, Rows: (a.KV.W.W.Rows - own) / a.Shape.Heads}
}

// heads is t [T, Heads*n] as rows of tokens' heads, [T*Heads, n].
func (a *MLA) heads(t kernels.Tensor) kernels.Tensor {
	return t.Reshape(t.Rows*a.Shape.Heads, t.Cols/a.Shape.Heads)
}

// absorb makes attention's queries: the first columns of a head are multiplied by the weight of its keys, the rotary
// ones are copied. Keys are (c, kr), values c: one row for all heads, from normed latents c [T, ck] and the rotary part
// of the keys, kr [T, r].
func (a *MLA) absorb(r *parallel.Rank, c, kr kernels.Tensor, s *MLASaved) {
	q := s.Q
	s.Absorbed.Q = q
	s.K = r.Stack.New(c.DType, c.Rows, c.Cols+kr.Cols)
	s.V = s.K.ColRange(0, c.Cols)
	r.Dev.Copy(s.V, c)
	r.Dev.Copy(s.K.ColRange(c.Cols, s.K.Cols), kr)
	s.Q = r.Stack.New(q.DType, q.Rows, a.Shape.Heads*s.K.Cols)
	from, to := a.heads(q), a.heads(s.Q)
	a.keyHeads().down(r, to.ColRange(0, c.Cols), from.ColRange(0, a.NopeDim), &s.Absorbed.KeyDown)
	r.Dev.Copy(to.ColRange(c.Cols, to.Cols), from.ColRange(a.NopeDim, from.Cols))
}

// readsValues tells whether a gradient reads o or what an adapter makes of it.
func (a *MLA) readsValues() bool { return a.O.readsInput() || a.KV.readsInput() }

// values is o [T, Heads*v] from attention's output over latents; the zero Tensor where nothing reads it.
func (a *MLA) values(r *parallel.Rank, k *Keep, s *MLASaved) kernels.Tensor {
	if k.done(layerOutput) && !a.readsValues() {
		return kernels.Tensor{}
	}
	p := a.valueHeads()
	s.Absorbed.O = r.Stack.New(s.Out.DType, s.Out.Rows, p.Heads*p.Rows)
	p.up(r, a.heads(s.Absorbed.O), a.heads(s.Out), &s.Absorbed.ValueUp)
	return s.Absorbed.O
}

// absorbBackward is dq [T, Heads*(n+r)] and dc [T, ck] from do [T, Heads*v]; it writes dkr [T, r].
func (a *MLA) absorbBackward(r *parallel.Rank, do, dkr kernels.Tensor, b *Batch, s *MLASaved) (dq, dc kernels.Tensor) {
	var valueDown, keyUp HeadSaved
	dout, values := r.Stack.New(do.DType, do.Rows, s.Out.Cols), a.valueHeads()
	values.down(r, a.heads(dout), a.heads(do), &valueDown)
	values.weightGrads(r, a.heads(do), a.heads(s.Out), &s.Absorbed.ValueUp, b)

	dabsorbed, dk, dv := r.Stack.New(do.DType, do.Rows, s.Q.Cols), r.Stack.New(do.DType, do.Rows, s.K.Cols),
		r.Stack.New(do.DType, do.Rows, s.V.Cols)
	a.attendBackward(r, dabsorbed, dk, dv, dout, b, s)
	r.Dev.Add(dv, dv, dk.ColRange(0, dv.Cols))
	r.Dev.Copy(dkr, dk.ColRange(dv.Cols, dk.Cols))

	q := a.heads(s.Absorbed.Q).ColRange(0, a.NopeDim)
	dq = r.Stack.New(do.DType, do.Rows, s.Absorbed.Q.Cols)
	from, to, keys := a.heads(dabsorbed), a.heads(dq), a.keyHeads()
	latent := from.ColRange(0, dv.Cols)
	keys.up(r, to.ColRange(0, a.NopeDim), latent, &keyUp)
	keys.weightGrads(r, q, latent, &keyUp, b)
	sharedGrads(r, b, sharedGrad{values, valueDown.U, a.heads(s.Out)}, sharedGrad{keys, s.Absorbed.KeyDown.U, latent})
	r.Dev.Copy(to.ColRange(a.NopeDim, to.Cols), from.ColRange(dv.Cols, from.Cols))
	return dq, dv
}
