package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// An owner that tokens choose more often than memory was planned for computes its rows in pieces, and all ranks
// exchange as often as the owner with most pieces. A piece is whole segments of experts, of the tokens of one rank, of
// which each has at most the rows of a rank: so no chain is cut, and pieces in order are the order of segments. Nothing
// that a piece computes stays; Backward computes it again from the tokens' inputs.

// leastRows is how many rows an owner has memory for whatever the batch: those of a decoding step are never in pieces.
const leastRows = 1024

// expertRows is how many rows an owner has memory for, of so many pairs of tokens and experts: an even share and a
// quarter more.
func expertRows(pairs, owners int) int {
	share := (pairs + owners - 1) / owners
	return min(pairs, max(share+share/4, leastRows))
}

// expertPiece is rows [from, to) of the plan of a rank's tokens, all of one owner.
type expertPiece struct{ rank, from, to int }

// none is what an owner computes that has no more pieces.
var none = expertPiece{}

// cut is the pieces of an owner, and how many rows they have.
func (e *expertExchange) cut(owner int) (pieces []expertPiece, rows int) {
	first, end := e.experts(owner)
	for rank, s := range e.shares {
		from, to := s.rowsAt(first, end)
		rows += to - from
		for c, n := first*s.plan.Groups.Segments, end*s.plan.Groups.Segments; c < n; c++ {
			if at := int(s.offsets[c]); at > from && int(s.offsets[c+1])-from > e.limit {
				pieces, from = append(pieces, expertPiece{rank, from, at}), at
			}
		}
		if to > from {
			pieces = append(pieces, expertPiece{rank, from, to})
		}
	}
	return pieces, rows
}

// cutAll cuts the rows of all owners where one has no memory for all of its own.
func (e *expertExchange) cutAll(r *parallel.Rank) {
	most, all := 0, make([][]expertPiece, len(e.ranks))
	for owner := range e.ranks {
		pieces, rows := e.cut(owner)
		all[owner], most = pieces, max(most, rows)
	}
	if most > e.limit {
		e.pieces = all
	}
	if pairs := e.tokens() * e.m.TopK; pairs > 0 {
		r.Count(parallel.Tally{Share: float64(most) / float64(pairs)})
	}
}

// rounds is how many pieces the owner with most of them has.
func (e *expertExchange) rounds() (n int) {
	for _, pieces := range e.pieces {
		n = max(n, len(pieces))
	}
	return n
}

// pieceOf is what an owner computes in a round.
func (e *expertExchange) pieceOf(owner, round int) expertPiece {
	if round < len(e.pieces[owner]) {
		return e.pieces[owner][round]
	}
	return none
}

// shareOf is the share of which a piece of this owner is, with the piece's rows alone.
func (e *expertExchange) shareOf(r *parallel.Rank, p expertPiece) *expertShare {
	all := e.shares[p.rank]
	first, end := e.experts(e.me)
	n := all.plan.Groups.Segments
	s := &expertShare{rank: all.rank, first: all.first, tokens: all.tokens, plan: all.plan, from: p.from,
		rows: p.to - p.from}
	if s.rows == 0 {
		return s
	}
	s.source = all.plan.Source.ColRange(p.from, p.to)
	offsets := make([]int32, 0, (end-first)*n+1)
	for _, at := range all.offsets[first*n : end*n+1] {
		offsets = append(offsets, int32(min(max(int(at), p.from), p.to)-p.from))
	}
	s.groups = kernels.Groups{Offsets: parallel.Upload(r, offsets), Count: end - first, Segments: n}
	return s
}

// byPiece computes tensors of each piece's rows, and brings the rows that this rank's tokens have at all owners, in the
// order of their plan: to own [T*K, n].
func (e *expertExchange) byPiece(r *parallel.Rank, own []kernels.Tensor,
	compute func(s *expertShare) []kernels.Tensor) {
	rounds := e.rounds()
	for round := range rounds {
		mark := r.Stack.Mark()
		at, in, out := make([]int, len(e.ranks)), make([]int, len(e.ranks)), make([]int, len(e.ranks))
		for owner := range e.ranks {
			if p := e.pieceOf(owner, round); p.rank == e.me {
				at[owner], in[owner] = p.from, p.to-p.from
			}
		}
		p := e.pieceOf(e.me, round)
		out[p.rank] = p.to - p.from
		var pairs []parallel.Pair
		for i, y := range compute(e.shareOf(r, p)) {
			pairs = append(pairs, parallel.Pair{Dst: own[i], Src: y})
		}
		x := r.Experts.Scatter(at, in, out, pairs...)
		if round == rounds-1 { // lanes yield as often as without pieces, and behind the sums of all: the first leads
			r.Yield()
		}
		x.Wait()
		r.Stack.Release(mark)
	}
}

// planPieces takes the memory, on a meta device, that pieces need in Backward beyond the rows of an owner at once: the
// gradients of outputs, which do not take the place of the inputs.
func (e *expertExchange) planPieces(r *parallel.Rank) {
	defer r.Stack.Release(r.Stack.Mark())
	if e.limit < e.tokens()*e.m.TopK {
		r.Stack.New(e.all.DType, e.all.Rows, e.all.Cols)
	}
}

// combinePieces is combine.
func (e *expertExchange) combinePieces(r *parallel.Rank, out, residual, weights kernels.Tensor) {
	own := r.Stack.New(e.all.DType, out.Rows*e.m.TopK, e.all.Cols)
	e.byPiece(r, []kernels.Tensor{own}, func(s *expertShare) []kernels.Tensor {
		e.compute(r, s, nil, func() {})
		return []kernels.Tensor{s.y}
	})
	if out.Rows > 0 {
		r.Dev.Combine(out, residual, own, weights, e.own().plan.RowOf)
	}
}

// backwardPieces is backward, which computes the outputs again.
func (e *expertExchange) backwardPieces(r *parallel.Rank, dx, dweights, dout, all kernels.Tensor) {
	pairs := dweights.Len()
	dxs, dws := r.Stack.New(dx.DType, pairs, dx.Cols), r.Stack.New(kernels.F32, pairs, 1)
	e.byPiece(r, []kernels.Tensor{dxs, dws}, func(s *expertShare) []kernels.Tensor {
		e.compute(r, s, nil, func() {})
		dxp, dw := s.inputGrad(r, e.of(s, dout, all), e.of(s, e.routed, e.weights))
		if s.rows > 0 {
			e.m.Experts.weightGrads(r, mlpRows{&s.saved, &s.groups})
		}
		return []kernels.Tensor{dxp, dw}
	})
	if pairs == 0 {
		return
	}
	rowOf := e.own().plan.RowOf
	r.Dev.Combine(dx, kernels.Tensor{}, dxs, kernels.Tensor{}, rowOf)
	r.Dev.Gather(dweights.Reshape(pairs, 1), dws, rowOf.Reshape(1, pairs))
}
