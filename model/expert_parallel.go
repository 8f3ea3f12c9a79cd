package model

import (
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Expert parallel (Lepikhin et al., arXiv 2006.16668): a rank has consecutive experts of every mixture, and computes
// their rows for the tokens of all ranks. Outputs come back row by row, un-summed, and each rank adds those of its
// tokens in the order of slots, so no sum crosses ranks. Gradients of experts are whole where the experts are: rows are
// in the order of ranks, which is that of segments.

// ExpertParallel tells whether experts are cut over ranks: all ranks then compute together.
func (m *Model) ExpertParallel() bool {
	return slices.ContainsFunc(m.Params, func(p *Param) bool { return p.split })
}

// cutExperts cuts the weights of experts over ranks.
func (m *Model) cutExperts(ranks []kernels.Device) error {
	found := false
	for _, l := range m.linears() {
		if !l.Fused {
			continue
		}
		found = true
		list := []*Param{l.W}
		for _, s := range l.Subs {
			if s.Bias != nil {
				list = append(list, s.Bias)
			}
		}
		for _, p := range list {
			if p.W.Groups < len(ranks) {
				return fmt.Errorf("parallel.experts: %d experts are fewer than %d ranks", p.W.Groups, len(ranks))
			}
			for i, dev := range ranks {
				from, to := expertRange(i, len(ranks), p.W.Groups)
				p.home = append(p.home, weightHome{i, dev, described(p.W.DType, to-from, p.W.Rows, p.W.Cols)})
			}
			p.split = true
		}
	}
	if !found {
		return fmt.Errorf("parallel.experts: model_type %s has no experts here, set 1", m.Family)
	}
	return nil
}

// splitLike adds a parameter of matrices [rows, cols], one for each of those of a weight that is cut over ranks, in the
// memory where these lie. On other ranks than the first it is the first one's.
func (m *Model) splitLike(w *Param, rows, cols int, part Part, init Init) *Param {
	p := &Param{Name: part.Name, Parts: []Part{part}, Init: init, unit: w.unit, split: true}
	if first := m.first; first != nil {
		p.home = first.Params[len(m.Params)].home
	} else {
		for _, h := range w.home {
			t := kernels.NewArena(h.dev)
			t.Reserve(kernels.ArenaBytes(m.DType, h.t.Groups*rows, cols))
			p.home = append(p.home, weightHome{h.owner, h.dev, t.NewGrouped(m.DType, h.t.Groups, rows, cols)})
		}
	}
	p.W = p.home[m.rank].t
	m.Params = append(m.Params, p)
	return p
}

// expertRange is the experts [from, to) of a rank.
func expertRange(rank, ranks, experts int) (from, to int) {
	return rank * experts / ranks, (rank + 1) * experts / ranks
}

// expertExchange is how the rows of a mixture go to the owners of their experts and come back.
type expertExchange struct {
	out, in []int          // rows to and from each rank, in the order of ranks
	rows    int            // from all ranks
	groups  kernels.Groups // of the rows at the owner: by expert, then rank, then segment of the rank
	// int32 [rows]: the row from the ranks that is each row at the owner, and the row at the owner that is each row
	// from the ranks
	order, back kernels.Tensor
}

// newExpertExchange tells the ranks how many rows each has for each expert, and waits until it knows. plan is that of
// the rows of this rank.
func newExpertExchange(r *parallel.Rank, plan kernels.Plan, ranks int) *expertExchange {
	local := plan.Groups
	if r.Experts == nil { // a plan: as many rows as the rank's own, evenly spread
		return planExchange(r, plan, ranks)
	}
	counts := r.Experts.ShareNumbers(r.Transfers.ReadAsync(local.Offsets)())
	e := &expertExchange{}
	from, to := expertRange(r.Experts.Me, ranks, local.Count)
	own := counts[r.Experts.Me]
	segments := make([]int, ranks) // of each rank
	first := make([]int, ranks)    // row of each rank's block, among those that come
	for i, of := range counts {
		segments[i] = (len(of) - 1) / local.Count
		a, b := expertRange(i, ranks, local.Count)
		e.out = append(e.out, int(own[b*local.Segments]-own[a*local.Segments]))
		first[i] = e.rows
		e.in = append(e.in, int(of[to*segments[i]]-of[from*segments[i]]))
		e.rows += e.in[i]
		e.groups.Segments += segments[i]
	}
	e.groups.Count = to - from
	order, back, offsets := make([]int32, 0, e.rows), make([]int32, e.rows), []int32{0}
	for expert := from; expert < to; expert++ {
		for i, of := range counts {
			for s := range segments[i] {
				at := expert*segments[i] + s
				for row := of[at]; row < of[at+1]; row++ {
					came := int32(first[i]) + row - of[from*segments[i]]
					back[came] = int32(len(order))
					order = append(order, came)
				}
				offsets = append(offsets, int32(len(order)))
			}
		}
	}
	e.groups.Offsets = parallel.Upload(r, offsets)
	if e.rows > 0 {
		e.order, e.back = parallel.Upload(r, order), parallel.Upload(r, back)
	}
	return e
}

func planExchange(r *parallel.Rank, plan kernels.Plan, ranks int) *expertExchange {
	local := plan.Groups
	from, to := expertRange(r.ID, ranks, local.Count)
	e := &expertExchange{rows: plan.Source.Cols}
	e.groups = kernels.Groups{Count: to - from, Segments: ranks * local.Segments,
		Offsets: r.Stack.New(kernels.I32, 1, (to-from)*ranks*local.Segments+1)}
	e.order, e.back = r.Stack.New(kernels.I32, 1, e.rows), r.Stack.New(kernels.I32, 1, e.rows)
	return e
}

// toOwners is the rows at this owner, [rows, n], from those of this rank by expert, [R, n].
func (e *expertExchange) toOwners(r *parallel.Rank, x kernels.Tensor) kernels.Tensor {
	came := r.Stack.New(x.DType, e.rows, x.Cols)
	if r.Experts != nil {
		r.Experts.AllToAll(came, x, e.in, e.out).Wait()
	}
	return e.gather(r, came, e.order)
}

// fromOwners is the inverse of toOwners.
func (e *expertExchange) fromOwners(r *parallel.Rank, y kernels.Tensor) kernels.Tensor {
	y = e.gather(r, y, e.back)
	rows := e.rows
	if r.Experts != nil {
		rows = 0
		for _, n := range e.out {
			rows += n
		}
	}
	own := r.Stack.New(y.DType, rows, y.Cols)
	if r.Experts != nil {
		r.Experts.AllToAll(own, y, e.out, e.in).Wait()
	}
	return own
}

func (e *expertExchange) gather(r *parallel.Rank, x, order kernels.Tensor) kernels.Tensor {
	out := r.Stack.New(x.DType, e.rows, x.Cols)
	if e.rows > 0 {
		r.Dev.Gather(out, x, order)
	}
	return out
}
