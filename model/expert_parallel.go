package model

import (
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Expert parallel (Lepikhin et al., arXiv 2006.16668): a rank has consecutive experts of every mixture, and computes
// their rows for the tokens of all ranks. It gathers all tokens with what their router has chosen: one row of each,
// where those for its experts would be more, and have to be counted first. Each rank reads the outputs of its tokens
// where they were computed, and adds them in the order of slots, so no sum crosses ranks. Gradients of experts are
// whole where the experts are: rows are in the order of ranks, which is that of segments.

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
				p.home = append(p.home, p.newHome(i, dev, to-from))
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
			p.home = append(p.home, weightHome{owner: h.owner, dev: h.dev,
				t: t.NewGrouped(m.DType, h.t.Groups, rows, cols)})
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

// expertExchange brings the tokens of all ranks to the owners of their experts, and the owners' rows back.
type expertExchange struct {
	m       *MoE
	u       kernels.Tensor // [T, H]: this rank's tokens
	routing *Routing       // of these
	ranks   [][]int32      // row offsets of the segments of each rank's tokens
	trains  bool           // Backward may follow at some rank
	all     kernels.Tensor // [tokens of all ranks, H]: their inputs, and then the gradients of their outputs
	weights kernels.Tensor // F32 [tokens of all ranks, K]

	plan    kernels.Plan // of the tokens of all ranks
	offsets []int32      // of plan.Groups, as the host knows them
	first   []int        // segment of each rank, and their number

	limit  int      // of rows that an owner computes at once
	cuts   [][]cell // of each owner's rows: see expertPiece
	rounds int      // of exchanges; above 1 in pieces

	base   int            // this owner's first row, among those of all owners
	rows   int            // of this owner
	source kernels.Tensor // int32 [1, rows]: the token of each, among those of all
	pair   kernels.Tensor // int32 [1, rows]: and its slot
	groups kernels.Groups // by expert, then rank, then segment

	gathered *parallel.Exchange // of inputs; of few tokens the others may still read this rank's when they are there
	ahead    bool               // gathered is of gradients
}

// A rank begins an exchange by telling the others the place of its mixture, whether it trains, and its segments. One
// that stands by has no tokens, and does what the others are at.
const (
	standsBy = -1
	released = -2 // by rank 0
)

var noTokens = []int32{standsBy, 0, 0}

// exchange begins to gather the tokens of all ranks, while this one routes its own: u [T, H] in segments.
func (m *MoE) exchange(r *parallel.Rank, u kernels.Tensor, segments []int32, k *Keep) *expertExchange {
	e := &expertExchange{m: m, trains: k != nil}
	if r.Experts == nil { // a plan: every rank has as many tokens
		e.ranks = slices.Repeat([][]int32{segments}, len(m.Experts.GateUp.W.home))
	} else {
		trains := int32(0)
		if e.trains {
			trains = 1
		}
		r.Experts.Summon()
		e.meet(r.Experts.ShareNumbers(append([]int32{int32(m.place), trains}, segments...)))
	}
	e.gatherInputs(r, u)
	return e
}

// gatherInputs begins to gather inputs, whose copy needs no router; few come with what was chosen.
func (e *expertExchange) gatherInputs(r *parallel.Rank, u kernels.Tensor) {
	e.u, e.all = u, r.Stack.New(u.DType, e.tokens(), u.Cols)
	if !e.few() {
		e.gathered = beginGather(r, parallel.Pair{Dst: e.all, Src: u})
	}
}

// meet takes what ranks have told each other.
func (e *expertExchange) meet(told [][]int32) {
	for i, of := range told {
		if of[0] != standsBy && int(of[0]) != e.m.place {
			panic(fmt.Sprintf("model: rank %d is at mixture %d, another at %d", i, of[0], e.m.place))
		}
		e.ranks, e.trains = append(e.ranks, of[2:]), e.trains || of[1] != 0
	}
}

// tokens is how many all ranks have.
func (e *expertExchange) tokens() (n int) {
	for _, segments := range e.ranks {
		n += int(segments[len(segments)-1])
	}
	return n
}

// segments is the row offsets of the segments of all tokens. It sets the first of each rank.
func (e *expertExchange) segments() []int32 {
	all := []int32{0}
	for _, segments := range e.ranks {
		at := all[len(all)-1]
		e.first = append(e.first, len(all)-1)
		for _, end := range segments[1:] {
			all = append(all, at+end)
		}
	}
	e.first = append(e.first, len(all)-1)
	return all
}

// dispatch gathers what the routers of all ranks have chosen, and finds this owner's rows. The host has to learn how
// many there are, once for a block that is computed twice.
func (e *expertExchange) dispatch(r *parallel.Rank, by *Routing, k *Keep) {
	e.routing = by
	segments, tokens, topK := e.segments(), e.tokens(), e.m.TopK
	pairs := tokens * topK
	e.plan = kernels.Plan{Groups: kernels.Groups{Count: e.m.Router.W.W.Rows, Segments: len(segments) - 1},
		Source: r.Stack.New(kernels.I32, 1, pairs)}
	e.plan.Groups.Offsets = r.Stack.New(kernels.I32, 1, e.plan.Groups.Count*e.plan.Groups.Segments+1)
	if e.few() {
		e.dispatchFew(r, by, segments)
		return
	}
	e.weights, e.plan.Pair = r.Stack.New(kernels.F32, tokens, topK), r.Stack.New(kernels.I32, 1, pairs)
	e.plan.RowOf = r.Stack.New(kernels.I32, tokens, topK)
	mark := r.Stack.Mark()
	chosen := r.Stack.New(kernels.I32, tokens, topK)
	endGather(r, e.gathered, beginGather(r, parallel.Pair{Dst: chosen, Src: by.Experts},
		parallel.Pair{Dst: e.weights, Src: by.Weights}))
	e.gathered = nil
	r.Dev.Dispatch(e.plan, chosen, segments)
	r.Stack.Release(mark)
	e.limit = expertRows(pairs, len(e.ranks))
	from, to := 0, e.limit
	if kernels.CountsWork(r.Dev) {
		to = pairs / len(e.ranks)
	}
	if r.Experts != nil {
		e.offsets = k.counted(func() []int32 {
			read := r.Transfers.ReadAsync(e.plan.Groups.Offsets)
			r.Yield()
			return read()
		})
		own, end := e.experts(r.Experts.Me)
		from, to = e.at(own, 0), e.at(end, 0)
	}
	e.base, e.rows = from, to-from
	e.source, e.pair = e.plan.Source.ColRange(from, to), e.plan.Pair.ColRange(from, to)
	e.count(r)
}

// experts is those of an owner, [from, to).
func (e *expertExchange) experts(owner int) (from, to int) {
	return expertRange(owner, len(e.ranks), e.plan.Groups.Count)
}

// at is the first row of an expert that a rank's token has, among all rows.
func (e *expertExchange) at(expert, rank int) int {
	return int(e.offsets[expert*e.plan.Groups.Segments+e.first[rank]])
}

// count finds the groups of this owner's rows.
func (e *expertExchange) count(r *parallel.Rank) {
	from, to := e.experts(r.ID % len(e.ranks))
	n := e.plan.Groups.Segments
	e.groups = kernels.Groups{Count: to - from, Segments: n}
	if r.Experts == nil {
		e.groups.Offsets = r.Stack.New(kernels.I32, 1, (to-from)*n+1)
		return
	}
	own := slices.Clone(e.offsets[from*n : to*n+1])
	for i := range own {
		own[i] -= int32(e.base)
	}
	e.groups.Offsets = parallel.Upload(r, own)
	e.cutAll(r)
}

// peers are rows of all owners, in the order of the plan: this rank's view of what each has computed for its experts.
func (e *expertExchange) peers(of []kernels.Tensor) kernels.PeerRows {
	y := kernels.PeerRows{Parts: of, Offsets: e.plan.Groups.Offsets}
	for owner := range e.ranks {
		from, _ := e.experts(owner)
		base := 0
		if !e.few() {
			base = e.at(from, 0)
		}
		y.Base, y.First = append(y.Base, base), append(y.First, from*e.plan.Groups.Segments)
	}
	return y
}

// ownRows is where the rows of this rank's tokens lie, int32 [T, K].
func (e *expertExchange) ownRows(r *parallel.Rank, tokens int) kernels.Tensor {
	first := 0
	if r.Experts != nil {
		for _, segments := range e.ranks[:r.Experts.Me] {
			first += int(segments[len(segments)-1])
		}
	}
	return e.plan.RowOf.RowRange(first, first+tokens)
}

// outputs is what this owner's experts compute for their tokens, [rows, H]; in pieces nothing yet.
func (e *expertExchange) outputs(r *parallel.Rank, k *Keep, s *MLPSaved, b *Batch) kernels.Tensor {
	if e.rows == 0 || e.rounds > 1 {
		return r.Stack.New(e.all.DType, 0, e.all.Cols)
	}
	return e.m.Experts.forwardOf(r, e.rows, e.m.Experts.GateUp.gathered(r), func() kernels.Tensor {
		x := r.Stack.New(e.all.DType, e.rows, e.all.Cols)
		r.Dev.Gather(x, e.all, e.source)
		e.gatherGradients(r, b) // behind the products of these rows
		return x
	}, &e.groups, k, SaveExperts, s)
}

// combine writes the sums of this rank's tokens, [T, H], weighted by weights F32 [T, K], from what the owners have
// computed; y is this one's.
func (e *expertExchange) combine(r *parallel.Rank, out, y, weights kernels.Tensor) {
	switch {
	case e.rounds > 1:
		e.combinePieces(r, out, weights)
	case r.Experts == nil: // a plan
		e.countRows(r, y)
		e.planPieces(r, y)
		r.Dev.Combine(out, y, weights, e.ownRows(r, out.Rows))
	default:
		x := r.Experts.Read(func(of [][]kernels.Tensor) {
			if out.Rows > 0 {
				r.Transfers.CombinePeers(out, e.peers(of[0]), weights, e.ownRows(r, out.Rows))
			}
		}, y)
		r.Yield()
		if e.few() {
			e.gathered.Wait()
		}
		x.Wait()
	}
}

// lastMixture is a block's last layer, where that is a mixture whose output is what it adds to the block's; else nil.
func (bl Block) lastMixture() *MoE {
	if m, ok := bl[len(bl)-1].Layer.(*MoE); ok && m.OutOf == nil {
		return m
	}
	return nil
}

// gatherGradients begins to gather the gradients of the outputs of all ranks' tokens, where they are known: the block
// is computed again. They take the place of the inputs, which no operation reads any more; in pieces those stay.
func (e *expertExchange) gatherGradients(r *parallel.Rank, b *Batch) {
	if b == nil || b.again != e.m || e.rounds > 1 || e.ahead {
		return
	}
	e.ahead, e.gathered = true, beginGather(r, parallel.Pair{Dst: e.all, Src: b.dout})
	e.gathered.Unpin() // what is allocated meanwhile is released meanwhile: both lie below
}

// allGradients is the gradients of the outputs of all ranks' tokens, from those of this rank's.
func (e *expertExchange) allGradients(r *parallel.Rank, dout kernels.Tensor) kernels.Tensor {
	all := e.all
	if e.rounds > 1 {
		all = r.Stack.New(dout.DType, e.tokens(), dout.Cols)
	}
	if !e.ahead {
		e.gathered = beginGather(r, parallel.Pair{Dst: all, Src: dout})
	}
	endGather(r, e.gathered)
	return all
}

// backward writes the gradients of the inputs of this rank's tokens dx [T, H] and of their weights F32 [T, K], from
// those of the outputs of all ranks' tokens. y and s are what this owner's experts have computed.
func (e *expertExchange) backward(r *parallel.Rank, dx, dweights, dall, y kernels.Tensor, s *MLPSaved) {
	if e.rounds > 1 {
		e.backwardPieces(r, dx, dweights, dall)
		return
	}
	dy, dw := r.Stack.New(y.DType, e.rows, y.Cols), r.Stack.New(kernels.F32, e.rows, 1)
	dxs := dy
	if e.rows > 0 {
		r.Dev.CombineBackward(dy, dw, dall, y, e.weights, e.pair, kernels.Tensor{})
		dxs = s.backward(r, dy, &e.groups, &e.groups)
	}
	rowOf := e.ownRows(r, dx.Rows)
	if r.Experts == nil { // a plan
		e.countRows(r, dxs, dw)
		e.planPieces(r, dxs, dw)
		r.Dev.Combine(dx, dxs, kernels.Tensor{}, rowOf)
		return
	}
	x := r.Experts.Read(func(of [][]kernels.Tensor) {
		if dx.Rows > 0 {
			r.Transfers.CombinePeers(dx, e.peers(of[0]), kernels.Tensor{}, rowOf)
			r.Transfers.TakePeers(dweights.Reshape(dweights.Len(), 1), e.peers(of[1]), rowOf.Reshape(1, rowOf.Len()))
		}
	}, dxs, dw)
	r.Yield()
	x.Wait()
}

// countRows tells a plan how many bytes a rank's tokens get from the rows of other owners.
func (e *expertExchange) countRows(r *parallel.Rank, list ...kernels.Tensor) {
	rows, bytes := e.tokens()*e.m.TopK/len(e.ranks), 0
	for _, y := range list {
		bytes += (rows - rows/len(e.ranks)) * y.Cols * y.DType.Size()
	}
	kind := kernels.ExchangeRows
	if e.few() {
		kind = kernels.ExchangeFew
	}
	kernels.CountExchange(r.Dev, kind, bytes)
}

// beginGather begins to fill tensors with the rows of all ranks' tokens; nil: it only counts them, in a plan.
func beginGather(r *parallel.Rank, pairs ...parallel.Pair) *parallel.Exchange {
	if r.Experts == nil { // a plan
		bytes := 0
		for _, p := range pairs {
			bytes += p.Dst.Bytes() - p.Src.Bytes()
		}
		kernels.CountExchange(r.Dev, kernels.ExchangeTokens, bytes)
		return nil
	}
	return r.Experts.AllGather(pairs...)
}

// endGather waits for what has begun.
func endGather(r *parallel.Rank, list ...*parallel.Exchange) {
	if r.Experts == nil { // a plan
		return
	}
	r.Yield()
	for _, x := range list {
		x.Wait()
	}
}

// ServeExperts computes this rank's experts for rank 0, which works alone, until it is released.
func (m *Model) ServeExperts(r *parallel.Rank) {
	mixtures := m.mixtures()
	for {
		told := r.Experts.StandBy(noTokens)
		at := told[0][0]
		if at == released {
			return
		}
		mixtures[at].serve(r, told, m.DType)
	}
}

// ServeForward computes this rank's experts in one forward of other ranks, where it has no tokens itself.
func (m *Model) ServeForward(r *parallel.Rank) {
	for _, l := range m.mixtures() {
		l.serve(r, r.Experts.ShareNumbers(noTokens), m.DType)
	}
}

// ReleaseExperts makes ServeExperts of the other ranks return.
func (m *Model) ReleaseExperts(r *parallel.Rank) { r.Experts.ShareNumbers([]int32{released}) }

// serve computes the rows of others.
func (m *MoE) serve(r *parallel.Rank, told [][]int32, d kernels.DType) {
	defer r.Stack.Release(r.Stack.Mark())
	e := &expertExchange{m: m}
	e.meet(told)
	none := &Routing{Experts: r.Stack.New(kernels.I32, 0, m.TopK), Weights: r.Stack.New(kernels.F32, 0, m.TopK)}
	u := r.Stack.New(d, 0, m.Experts.GateUp.W.W.Cols)
	e.gatherInputs(r, u)
	e.dispatch(r, none, nil)
	e.combine(r, u, e.outputs(r, nil, new(MLPSaved), nil), none.Weights)
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
