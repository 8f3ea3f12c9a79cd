package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// An owner that tokens choose more often than memory was planned for computes its rows in pieces, and all ranks
// exchange as often as the owner with most pieces. A piece is whole segments of experts, of which each has at most the
// rows of a rank: so no chain is cut, and pieces in order are the order of segments. Nothing that a piece computes
// stays; Backward computes it again from the tokens' inputs.

// leastRows is how many rows an owner has memory for whatever the batch: those of a decoding step are never in pieces.
const leastRows = 1024

// expertRows is how many rows an owner has memory for, of so many pairs of tokens and experts: an even share and a
// quarter more.
func expertRows(pairs, owners int) int {
	share := (pairs + owners - 1) / owners
	return min(pairs, max(share+share/4, leastRows))
}

// cell is the rows of a segment at an expert, numbered by expert, then segment.
type cell = int

// cut is the first cell of each piece of an owner, and one more.
func (e *expertExchange) cut(owner int) (cells []cell) {
	from, to := e.experts(owner)
	n := e.plan.Groups.Segments
	cells = append(cells, from*n)
	for c := from * n; c < to*n; c++ {
		if first := cells[len(cells)-1]; c > first && int(e.offsets[c+1]-e.offsets[first]) > e.limit {
			cells = append(cells, c)
		}
	}
	return append(cells, to*n)
}

// cutAll cuts the rows of all owners. It leaves rounds at 1 where every owner has memory for its rows.
func (e *expertExchange) cutAll(r *parallel.Rank) {
	most := 0
	for owner := range e.ranks {
		cells := e.cut(owner)
		e.cuts = append(e.cuts, cells)
		e.rounds = max(e.rounds, len(cells)-1)
		most = max(most, int(e.offsets[cells[len(cells)-1]]-e.offsets[cells[0]]))
	}
	if pairs := e.tokens() * e.m.TopK; pairs > 0 {
		r.Count(parallel.Tally{Share: float64(most) / float64(pairs)})
	}
}

// expertPiece is rows [from, to) of an owner.
type expertPiece struct {
	from, to int
	groups   kernels.Groups
	back     kernels.Tensor // int32 [1, rows]: the rows in the order of ranks, then experts
	out, in  []int          // rows that go to each rank, and that come from the piece of each owner
}

// piece is what is exchanged in a round.
func (e *expertExchange) piece(r *parallel.Rank, round int) *expertPiece {
	p := &expertPiece{}
	for owner := range e.ranks {
		first, end := e.cellsOf(owner, round)
		p.in = append(p.in, len(e.rowsOf(first, end, r.Experts.Me, 0)))
	}
	first, end := e.cellsOf(r.Experts.Me, round)
	p.from, p.to = int(e.offsets[first])-e.base, int(e.offsets[end])-e.base
	var back []int32
	for rank := range e.ranks {
		rows := e.rowsOf(first, end, rank, e.base+p.from)
		p.out, back = append(p.out, len(rows)), append(back, rows...)
	}
	own, last := e.experts(r.Experts.Me)
	n := e.plan.Groups.Segments
	offsets := make([]int32, 0, (last-own)*n+1)
	for _, at := range e.offsets[own*n : last*n+1] {
		offsets = append(offsets, int32(min(max(int(at)-e.base, p.from), p.to)-p.from))
	}
	p.groups = kernels.Groups{Offsets: parallel.Upload(r, offsets), Count: last - own, Segments: n}
	if len(back) > 0 {
		p.back = parallel.Upload(r, back)
	}
	return p
}

// cellsOf is the cells [from, to) of an owner's piece of a round, none where it has no more.
func (e *expertExchange) cellsOf(owner, round int) (from, to cell) {
	cells := e.cuts[owner]
	last := len(cells) - 1
	return cells[min(round, last)], cells[min(round+1, last)]
}

// rowsOf lists the rows of some cells that a rank's tokens have, counted from base.
func (e *expertExchange) rowsOf(from, to cell, rank, base int) (rows []int32) {
	n := e.plan.Groups.Segments
	for c := from; c < to; c++ {
		if s := c % n; s >= e.first[rank] && s < e.first[rank+1] {
			for row := e.offsets[c]; row < e.offsets[c+1]; row++ {
				rows = append(rows, row-int32(base))
			}
		}
	}
	return rows
}

// forward is the outputs of a piece's rows, [rows, H], of inputs all.
func (e *expertExchange) forward(r *parallel.Rank, p *expertPiece, s *MLPSaved) kernels.Tensor {
	if p.from == p.to {
		return r.Stack.New(e.all.DType, 0, e.all.Cols)
	}
	return e.m.Experts.forwardOf(r, p.to-p.from, e.m.Experts.GateUp.gathered(r), func() kernels.Tensor {
		x := r.Stack.New(e.all.DType, p.to-p.from, e.all.Cols)
		r.Dev.Gather(x, e.all, e.source.ColRange(p.from, p.to))
		return x
	}, &p.groups, nil, SaveExperts, s)
}

// byPiece computes tensors of each piece's rows, and brings the rows that this rank's tokens have at all owners, by
// expert: to own [T*K, n].
func (e *expertExchange) byPiece(r *parallel.Rank, own []kernels.Tensor,
	compute func(p *expertPiece) []kernels.Tensor) {
	at, next := make([]int, len(e.ranks)), 0 // the first row that comes from each owner
	for owner := range e.ranks {
		at[owner], next = next, next+e.rowsFrom(owner, r.Experts.Me)
	}
	for round := range e.rounds {
		mark := r.Stack.Mark()
		p := e.piece(r, round)
		var pairs []parallel.Pair
		for i, y := range compute(p) {
			sorted := r.Stack.New(y.DType, p.to-p.from, y.Cols)
			if p.to > p.from {
				r.Dev.Gather(sorted, y, p.back)
			}
			pairs = append(pairs, parallel.Pair{Dst: own[i], Src: sorted})
		}
		x := r.Experts.Scatter(at, p.in, p.out, pairs...)
		if round == e.rounds-1 { // lanes yield as often as without pieces, and behind the sums of all: the first leads
			r.Yield()
		}
		x.Wait()
		for owner, rows := range p.in {
			at[owner] += rows
		}
		r.Stack.Release(mark)
	}
}

// planPieces takes the memory, on a meta device, by which pieces need more than the rows of an owner at once, tensors
// like those of a list: what a rank brings, and what goes back in order.
func (e *expertExchange) planPieces(r *parallel.Rank, list ...kernels.Tensor) {
	defer r.Stack.Release(r.Stack.Mark())
	pairs := e.tokens() * e.m.TopK
	if e.few() || e.limit == pairs {
		return // an owner has room for all
	}
	for _, y := range list {
		r.Stack.New(y.DType, pairs/len(e.ranks), y.Cols)
		r.Stack.New(y.DType, y.Rows, y.Cols)
	}
}

// rowsFrom is how many rows of an owner a rank's tokens have.
func (e *expertExchange) rowsFrom(owner, rank int) (n int) {
	for expert, to := e.experts(owner); expert < to; expert++ {
		n += e.at(expert, rank+1) - e.at(expert, rank)
	}
	return n
}

// combinePieces is combine.
func (e *expertExchange) combinePieces(r *parallel.Rank, out, weights kernels.Tensor) {
	own := r.Stack.New(e.all.DType, out.Rows*e.m.TopK, e.all.Cols)
	e.byPiece(r, []kernels.Tensor{own}, func(p *expertPiece) []kernels.Tensor {
		return []kernels.Tensor{e.forward(r, p, new(MLPSaved))}
	})
	if out.Rows > 0 {
		r.Dev.Combine(out, own, weights, e.m.plan(r, e.routing, e.ranks[r.Experts.Me]).RowOf)
	}
}

// backwardPieces is backward, which computes the outputs again.
func (e *expertExchange) backwardPieces(r *parallel.Rank, dx, dweights, dall kernels.Tensor) {
	pairs := dweights.Len()
	dxs, dws := r.Stack.New(dx.DType, pairs, dx.Cols), r.Stack.New(kernels.F32, pairs, 1)
	e.byPiece(r, []kernels.Tensor{dxs, dws}, func(p *expertPiece) []kernels.Tensor {
		var s MLPSaved
		y := e.forward(r, p, &s)
		dy, dw := r.Stack.New(y.DType, y.Rows, y.Cols), r.Stack.New(kernels.F32, y.Rows, 1)
		if y.Rows == 0 {
			return []kernels.Tensor{dy, dw}
		}
		r.Dev.CombineBackward(dy, dw, dall, y, e.weights, e.pair.ColRange(p.from, p.to), kernels.Tensor{})
		return []kernels.Tensor{s.backward(r, dy, &p.groups, &p.groups), dw}
	})
	if pairs == 0 {
		return
	}
	rowOf := e.m.plan(r, e.routing, e.ranks[r.Experts.Me]).RowOf
	r.Dev.Combine(dx, dxs, kernels.Tensor{}, rowOf)
	r.Dev.Gather(dweights.Reshape(pairs, 1), dws, rowOf.Reshape(1, pairs))
}
