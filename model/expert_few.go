package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// A forward of few tokens that nothing trains on, as in decoding, waits for no count: every owner has room for the rows
// of all tokens, and those of its experts lie at their places among them. Tokens are gathered by operations too: copy
// engines take longer to begin than so few rows to move.

// mostFew is up to how many pairs of tokens and experts, those of all ranks, are few.
const mostFew = 8192

// few tells whether all ranks compute a forward of few tokens.
func (e *expertExchange) few() bool { return !e.trains && e.tokens()*e.m.TopK <= mostFew }

// FewTokens is up to how many tokens a rank's share of a forward of few tokens has, where all have as many; 0: experts
// are not cut over ranks.
func (m *Model) FewTokens() (n int) {
	for _, l := range m.mixtures() {
		if l.Experts.GateUp.W.split {
			n = mostFew / l.TopK / len(l.Experts.GateUp.W.home)
		}
	}
	return n
}

// dispatchFew gathers all tokens and finds the places of their rows.
func (e *expertExchange) dispatchFew(r *parallel.Rank, by *Routing) {
	segments, tokens, topK := e.segments(), e.tokens(), e.m.TopK
	n, pairs := len(segments)-1, tokens*topK
	s := &expertShare{rank: -1, tokens: tokens, rows: pairs, plan: kernels.Plan{
		Groups: kernels.Groups{Count: e.m.Router.W.W.Rows, Segments: n},
		Source: r.Stack.New(kernels.I32, 1, pairs)}}
	s.plan.Groups.Offsets = r.Stack.New(kernels.I32, 1, s.plan.Groups.Count*n+1)
	s.plan.RowOf = r.Stack.New(kernels.I32, tokens, topK)
	e.shares = []*expertShare{s}
	chosen := r.Stack.New(kernels.I32, tokens, topK)
	if r.Experts == nil { // a plan
		kernels.CountExchange(r.Dev, kernels.ExchangeFew,
			e.all.Bytes()-e.u.Bytes()+chosen.Bytes()-by.Experts.Bytes())
	} else {
		e.gathered = r.Experts.Read(func(of [][]kernels.Tensor) {
			r.Transfers.GatherPeers(e.all, of[0])
			r.Transfers.GatherPeers(chosen, of[1])
		}, e.u, by.Experts)
	}
	r.Dev.Dispatch(s.plan, chosen, segments)
	s.source = s.plan.Source
	from, to := e.experts(e.me)
	s.groups = kernels.Groups{Offsets: s.plan.Groups.Offsets.ColRange(from*n, to*n+1), Count: to - from, Segments: n}
}

// combineFew is combine of rows that are read where they were computed.
func (e *expertExchange) combineFew(r *parallel.Rank, out, residual, weights kernels.Tensor) {
	s, first := e.shares[0], 0
	for rank := range e.me {
		first += e.tokensOf(rank)
	}
	rowOf := s.plan.RowOf.RowRange(first, first+out.Rows)
	if r.Experts == nil { // a plan
		e.countRows(r, s.y)
		r.Dev.Combine(out, residual, s.y, weights, rowOf)
		return
	}
	x := r.Experts.Read(func(of [][]kernels.Tensor) {
		if out.Rows == 0 {
			return
		}
		y := kernels.PeerRows{Parts: of[0], Offsets: s.plan.Groups.Offsets, Base: make([]int, len(e.ranks))}
		for owner := range e.ranks {
			from, _ := e.experts(owner)
			y.First = append(y.First, from*s.plan.Groups.Segments)
		}
		r.Transfers.CombinePeers(out, residual, y, weights, rowOf)
	}, s.y)
	r.Yield()
	e.gathered.Wait()
	x.Wait()
}
