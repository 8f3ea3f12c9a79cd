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
func (e *expertExchange) dispatchFew(r *parallel.Rank, by *Routing, segments []int32) {
	e.plan.RowOf = r.Stack.New(kernels.I32, e.tokens(), e.m.TopK)
	chosen := r.Stack.New(kernels.I32, e.tokens(), e.m.TopK)
	if r.Experts == nil { // a plan
		kernels.CountExchange(r.Dev, kernels.ExchangeFew,
			e.all.Bytes()-e.u.Bytes()+chosen.Bytes()-by.Experts.Bytes())
	} else {
		e.gathered = r.Experts.Read(func(of [][]kernels.Tensor) {
			r.Transfers.GatherPeers(e.all, of[0])
			r.Transfers.GatherPeers(chosen, of[1])
		}, e.u, by.Experts)
	}
	r.Dev.Dispatch(e.plan, chosen, segments)
	e.rows, e.source = e.plan.Source.Cols, e.plan.Source
	from, to := e.experts(r.ID % len(e.ranks))
	n := e.plan.Groups.Segments
	e.groups = kernels.Groups{Offsets: e.plan.Groups.Offsets.ColRange(from*n, to*n+1), Count: to - from, Segments: n}
}
