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
	own     int            // rows of this rank
	rows    int            // rows from all ranks
	groups  kernels.Groups // of the rows at the owner: by expert, then rank, then segment of the rank
	// int32 [rows]: the row from the ranks that is each row at the owner, and the row at the owner that is each row
	// from the ranks
	order, back kernels.Tensor
}

// A rank begins an exchange by telling the others the place of its mixture and how many rows it has for each expert.
// One that stands by has none, and does what the others are at.
const (
	standsBy = -1
	released = -2 // by rank 0
)

// newExpertExchange tells the ranks how many rows each has for each expert, and waits until it knows. plan is that of
// the rows of this rank.
func (m *MoE) newExpertExchange(r *parallel.Rank, plan kernels.Plan) *expertExchange {
	if r.Experts == nil { // a plan: as many rows as the rank's own, evenly spread
		return planExchange(r, plan, len(m.Experts.GateUp.W.home))
	}
	r.Experts.Summon()
	rows := r.Transfers.ReadAsync(plan.Groups.Offsets)()
	return exchangeOf(r, r.Experts.ShareNumbers(append([]int32{int32(m.place)}, rows...)), plan.Groups.Count)
}

// ServeExperts computes this rank's experts for rank 0, which works alone, until it is released.
func (m *Model) ServeExperts(r *parallel.Rank) {
	mixtures := m.mixtures()
	for {
		counts := r.Experts.StandBy([]int32{standsBy})
		at := counts[0][0]
		if at == released {
			return
		}
		l := mixtures[at]
		l.serve(r, exchangeOf(r, counts, l.Experts.GateUp.W.matrices()), m.DType)
	}
}

// ServeForward computes this rank's experts in one forward of other ranks, where it has no tokens itself.
func (m *Model) ServeForward(r *parallel.Rank) {
	for _, l := range m.mixtures() {
		counts := r.Experts.ShareNumbers([]int32{standsBy})
		l.serve(r, exchangeOf(r, counts, l.Experts.GateUp.W.matrices()), m.DType)
	}
}

// ReleaseExperts makes ServeExperts of the other ranks return.
func (m *Model) ReleaseExperts(r *parallel.Rank) { r.Experts.ShareNumbers([]int32{released}) }

// serve computes the rows of others.
func (m *MoE) serve(r *parallel.Rank, e *expertExchange, d kernels.DType) {
	defer r.Stack.Release(r.Stack.Mark())
	input := func() kernels.Tensor { return e.toOwners(r, r.Stack.New(d, 0, m.Experts.GateUp.W.W.Cols)) }
	if e.rows == 0 {
		e.fromOwners(r, input())
		return
	}
	e.fromOwners(r, m.Experts.forwardOf(r, e.rows, input, &e.groups, nil, SaveExperts, new(MLPSaved)))
}

// mixtures lists the mixtures whose experts are cut over ranks, in the order of their places.
func (m *Model) mixtures() (list []*MoE) {
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			if l, ok := sub.Layer.(*MoE); ok {
				list = append(list, l)
			}
		}
	}
	return list
}

// exchangeOf is the exchange of ranks with counts of rows. Those of a rank are the place of the mixture, and the first
// row of each expert, and in it of each segment; or none.
func exchangeOf(r *parallel.Rank, counts [][]int32, experts int) *expertExchange {
	place := int32(standsBy)
	for i, of := range counts {
		if of[0] == standsBy {
			counts[i] = []int32{0}
			continue
		}
		if place != standsBy && of[0] != place {
			panic(fmt.Sprintf("model: rank %d is at mixture %d, another at %d", i, of[0], place))
		}
		place, counts[i] = of[0], of[1:]
	}
	e := &expertExchange{own: int(counts[r.Experts.Me][len(counts[r.Experts.Me])-1])}
	segments, first := make([]int, len(counts)), make([]int, len(counts)) // first: of a rank's rows that come
	for i, of := range counts {
		segments[i] = (len(of) - 1) / experts
		e.groups.Segments += segments[i]
	}
	// rows of a rank for the experts of another
	rows := func(of, at int) int {
		from, to := expertRange(at, len(counts), experts)
		return int(counts[of][to*segments[of]] - counts[of][from*segments[of]])
	}
	for i := range counts {
		first[i] = e.rows
		e.out, e.in = append(e.out, rows(r.Experts.Me, i)), append(e.in, rows(i, r.Experts.Me))
		e.rows += e.in[i]
	}
	e.sort(r, counts, segments, first, experts)
	return e
}

// sort puts the rows that come in the order of experts, then ranks, then segments.
func (e *expertExchange) sort(r *parallel.Rank, counts [][]int32, segments, first []int, experts int) {
	from, to := expertRange(r.Experts.Me, len(counts), experts)
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
}

func planExchange(r *parallel.Rank, plan kernels.Plan, ranks int) *expertExchange {
	local := plan.Groups
	from, to := expertRange(r.ID, ranks, local.Count)
	e := &expertExchange{own: plan.Source.Cols, rows: plan.Source.Cols}
	e.groups = kernels.Groups{Count: to - from, Segments: ranks * local.Segments,
		Offsets: r.Stack.New(kernels.I32, 1, (to-from)*ranks*local.Segments+1)}
	e.order, e.back = r.Stack.New(kernels.I32, 1, e.rows), r.Stack.New(kernels.I32, 1, e.rows)
	return e
}

// toOwners is the rows at this owner, [rows, n], from those of this rank by expert, [own, n].
func (e *expertExchange) toOwners(r *parallel.Rank, x kernels.Tensor) kernels.Tensor {
	return e.gather(r, allToAll(r, x, e.rows, e.in, e.out), e.order)
}

// fromOwners is the inverse of toOwners.
func (e *expertExchange) fromOwners(r *parallel.Rank, y kernels.Tensor) kernels.Tensor {
	return allToAll(r, e.gather(r, y, e.back), e.own, e.out, e.in)
}

// allToAll is rows [rows, n] from all ranks for those of x, in and out of them from and to each rank.
func allToAll(r *parallel.Rank, x kernels.Tensor, rows int, in, out []int) kernels.Tensor {
	y := r.Stack.New(x.DType, rows, x.Cols)
	if r.Experts != nil { // else a plan
		r.Experts.AllToAll(y, x, in, out).Wait()
	}
	return y
}

func (e *expertExchange) gather(r *parallel.Rank, x, order kernels.Tensor) kernels.Tensor {
	out := r.Stack.New(x.DType, e.rows, x.Cols)
	if e.rows > 0 {
		r.Dev.Gather(out, x, order)
	}
	return out
}
