package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// expand makes the keys and values of every head, [T, Heads*(n+r)] and [T, Heads*v], from normed latents c [T, ck] and
// the turned part of the keys, kr [T, r].
func (a *MLA) expand(r *parallel.Rank, c, kr kernels.Tensor, k *Keep, s *MLASaved) {
	kv := a.KV.forward(r, c, nil, k, SaveProjections, &s.KVIn)
	own := kv.ColRange(0, a.Shape.Heads*a.Own)
	s.K, s.V = r.Stack.New(c.DType, c.Rows, s.Q.Cols), kv.ColRange(own.Cols, kv.Cols)
	r.Dev.JoinHeads(s.K, own, kr)
}

// expandBackward is dq [T, Heads*(n+r)] and dc [T, ck] from do [T, Heads*v]; it writes dkr [T, r].
func (a *MLA) expandBackward(r *parallel.Rank, do, dkr kernels.Tensor, b *Batch, s *MLASaved) (dq, dc kernels.Tensor) {
	dq = r.Stack.New(do.DType, do.Rows, s.Q.Cols)
	dk, dkv := r.Stack.New(do.DType, do.Rows, s.K.Cols), r.Stack.New(do.DType, do.Rows, a.KV.W.W.Rows)
	own := a.Shape.Heads * a.Own
	a.attendBackward(r, dq, dk, dkv.ColRange(own, dkv.Cols), do, b, s)
	r.Dev.JoinHeadsBackward(dkv.ColRange(0, own), dkr, dk)
	return dq, a.KV.Backward(r, dkv, nil, b.Packs, &s.KVIn)
}
