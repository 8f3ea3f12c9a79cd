package model

import (
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Expert parallel (Lepikhin et al., arXiv 2006.16668): a rank has consecutive experts of every mixture, and computes
// their rows for the tokens of all ranks. It gathers all tokens with what their router has chosen: one row of each,
// where those for its experts would be more, and have to be counted first. Each rank gets the outputs of its tokens
// from where they were computed, and adds them in the order of slots, so no sum crosses ranks. Gradients of experts are
// whole where the experts are: they are added in the order of ranks, which is that of segments.
//
// An owner computes the rows of the other ranks' tokens first and those of its own last (see expertShare). So what goes
// back is on its way, by copy engines, while it still multiplies, forward and backward.

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
	m      *MoE
	u      kernels.Tensor // [T, H]: this rank's tokens
	ranks  [][]int32      // row offsets of the segments of each rank's tokens
	me     int            // this rank's place among them
	trains bool           // Backward may follow at some rank
	// all is [tokens of all ranks, H]: their inputs, and then the gradients of their outputs. This rank's own are read
	// where they are (see of), unless tokens are few.
	all     kernels.Tensor
	weights kernels.Tensor // F32 [tokens of all ranks, K]; this rank's own are in routed
	routed  kernels.Tensor // F32 [T, K]

	shares   []*expertShare       // of each rank's tokens; of few tokens, and in a plan, one of all
	received kernels.Tensor       // rows of this rank's tokens from the other owners, in their order; nil: none yet
	coming   []*parallel.Exchange // of them

	limit  int             // of rows that an owner computes at once
	pieces [][]expertPiece // of each owner's rows; nil: every owner has memory for all at once

	gathered *parallel.Exchange   // of inputs; of few tokens the others may still read this rank's when they are there
	ahead    bool                 // gathered is of gradients
	read     []*parallel.Exchange // whose rows are here, while the others may still read this rank's
}

// expertShare is what an owner computes for the tokens of a rank: their rows at its experts, by expert, then segment.
type expertShare struct {
	rank          int            // -1: all of them
	first, tokens int            // of the rank, among those of all
	plan          kernels.Plan   // of the tokens at all experts
	offsets       []int32        // of plan.Groups, as the host knows them
	from, rows    int            // of the plan's rows this owner has: the first one, and how many
	source        kernels.Tensor // int32 [1, rows]: the token of each row
	groups        kernels.Groups // by expert of this owner, then segment
	saved         MLPSaved
	y             kernels.Tensor // [rows, H]
}

// of is the rows of the rank's tokens, of those of all.
func (s *expertShare) of(all kernels.Tensor) kernels.Tensor {
	return all.RowRange(s.first, s.first+s.tokens)
}

// of is the rows of a share's tokens: own, of this rank's, or among those of all.
func (e *expertExchange) of(s *expertShare, own, all kernels.Tensor) kernels.Tensor {
	if s.rank == e.me {
		return own
	}
	return s.of(all)
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
		e.me = r.ID % len(e.ranks)
	} else {
		trains := int32(0)
		if e.trains {
			trains = 1
		}
		r.Experts.Summon()
		e.meet(r, r.Experts.ShareNumbers(append([]int32{int32(m.place), trains}, segments...)))
	}
	e.gatherInputs(r, u)
	return e
}

// gatherInputs begins to gather inputs, whose copy needs no router; few come with what was chosen.
func (e *expertExchange) gatherInputs(r *parallel.Rank, u kernels.Tensor) {
	e.u, e.all = u, r.Stack.New(u.DType, e.tokens(), u.Cols)
	if !e.few() {
		e.gathered = beginGatherOthers(r, parallel.Pair{Dst: e.all, Src: u})
	}
}

// meet takes what ranks have told each other.
func (e *expertExchange) meet(r *parallel.Rank, told [][]int32) {
	e.me = r.Experts.Me
	for i, of := range told {
		if of[0] != standsBy && int(of[0]) != e.m.place {
			panic(fmt.Sprintf("model: rank %d is at mixture %d, another at %d", i, of[0], e.m.place))
		}
		segments := of[2:]
		if segments[len(segments)-1] == 0 {
			segments = segments[:1] // none: what has no tokens is dispatched nowhere
		}
		e.ranks, e.trains = append(e.ranks, segments), e.trains || of[1] != 0
	}
}

// tokens is how many all ranks have.
func (e *expertExchange) tokens() (n int) {
	for _, segments := range e.ranks {
		n += int(segments[len(segments)-1])
	}
	return n
}

// segments is the row offsets of the segments of all tokens.
func (e *expertExchange) segments() []int32 {
	all := []int32{0}
	for _, segments := range e.ranks {
		at := all[len(all)-1]
		for _, end := range segments[1:] {
			all = append(all, at+end)
		}
	}
	return all
}

// tokensOf is how many a rank has.
func (e *expertExchange) tokensOf(rank int) int {
	segments := e.ranks[rank]
	return int(segments[len(segments)-1])
}

// newShare has the plan of some tokens, in the memory of that of all, but for where their rows lie.
func (e *expertExchange) newShare(rank, first, tokens, segments int, source, rowOf kernels.Tensor) *expertShare {
	return &expertShare{rank: rank, first: first, tokens: tokens, plan: kernels.Plan{
		Groups: kernels.Groups{Count: e.m.Router.W.W.Rows, Segments: segments},
		Source: source.RowRange(first, first+tokens).Reshape(1, tokens*e.m.TopK),
		RowOf:  rowOf.RowRange(first, first+tokens)}}
}

// dispatch orders the rows of this rank's tokens, gathers the orders of all ranks, and finds this owner's rows. Hosts
// have to learn how many there are, once for a block that is computed twice: each looks at the counts of its own tokens
// while the orders are on their way, and tells the others.
func (e *expertExchange) dispatch(r *parallel.Rank, by *Routing, k *Keep) {
	switch {
	case e.few():
		e.dispatchFew(r, by)
		return
	case r.Experts == nil:
		e.dispatchPlanned(r, by)
		return
	}
	come := e.dispatchShares(r, by)
	e.limit = expertRows(e.tokens()*e.m.TopK, len(e.ranks))
	counts := k.counted(func() func() []int32 {
		read := r.Transfers.ReadAsync(e.own().plan.Groups.Offsets)
		return func() []int32 { return slices.Concat(r.Experts.ShareNumbers(read())...) }
	})
	r.Yield()
	e.wait(come, e.gathered) // of the device: the host looks at the counts, which lie before, when this is enqueued
	e.gathered = nil
	e.count(r, counts())
}

// dispatchShares orders the rows of this rank's tokens by expert, and begins to gather the orders of those of the
// others, with their weights.
func (e *expertExchange) dispatchShares(r *parallel.Rank, by *Routing) *parallel.Exchange {
	tokens, topK := e.tokens(), e.m.TopK
	source, rowOf := r.Stack.New(kernels.I32, tokens, topK), r.Stack.New(kernels.I32, tokens, topK)
	e.weights, e.routed = r.Stack.New(kernels.F32, tokens, topK), by.Weights
	first := 0
	for rank, segments := range e.ranks {
		n := e.tokensOf(rank)
		e.shares = append(e.shares, e.newShare(rank, first, n, len(segments)-1, source, rowOf))
		first += n
	}
	own := e.own()
	p := &own.plan
	p.Groups.Offsets = r.Stack.New(kernels.I32, 1, p.Groups.Count*p.Groups.Segments+1)
	if own.tokens > 0 {
		r.Dev.Dispatch(*p, by.Experts, e.ranks[e.me])
	}
	return e.gatherPlans(r, own.first, source, rowOf)
}

// gatherPlans begins to gather the orders of the rows of the other ranks' tokens, with the tokens' weights; this rank's
// tokens begin with the first.
func (e *expertExchange) gatherPlans(r *parallel.Rank, first int, source, rowOf kernels.Tensor) *parallel.Exchange {
	own := func(all kernels.Tensor) kernels.Tensor { return all.RowRange(first, first+e.routed.Rows) }
	return beginGatherOthers(r, parallel.Pair{Dst: source, Src: own(source)},
		parallel.Pair{Dst: rowOf, Src: own(rowOf)}, parallel.Pair{Dst: e.weights, Src: e.routed})
}

// dispatchPlanned is dispatch in a plan, as if all ranks' tokens were one's: an owner's rows may be of any.
func (e *expertExchange) dispatchPlanned(r *parallel.Rank, by *Routing) {
	tokens, topK := e.tokens(), e.m.TopK
	segments := e.segments()
	n := len(segments) - 1
	source, rowOf := r.Stack.New(kernels.I32, tokens, topK), r.Stack.New(kernels.I32, tokens, topK)
	e.weights, e.routed = r.Stack.New(kernels.F32, tokens, topK), by.Weights
	s := e.newShare(-1, 0, tokens, n, source, rowOf)
	s.plan.Groups.Offsets = r.Stack.New(kernels.I32, 1, e.m.Router.W.W.Rows*n+len(e.ranks))
	e.shares = []*expertShare{s}
	r.Dev.Dispatch(s.plan, by.Experts, segments)
	e.gatherPlans(r, 0, source, rowOf)
	pairs := tokens * topK
	e.limit = expertRows(pairs, len(e.ranks))
	s.rows = e.limit
	if kernels.CountsWork(r.Dev) {
		s.rows = pairs / len(e.ranks)
	}
	s.source = s.plan.Source.ColRange(0, s.rows)
	from, to := e.experts(e.me)
	s.groups = kernels.Groups{Count: to - from, Segments: n,
		Offsets: r.Stack.New(kernels.I32, 1, (to-from)*n+len(e.ranks))}
	r.Stack.New(kernels.U8, len(e.ranks), 8<<10) // which the ends of each share's tensors may take
}

// experts is those of an owner, [from, to).
func (e *expertExchange) experts(owner int) (from, to int) {
	return expertRange(owner, len(e.ranks), e.m.Router.W.W.Rows)
}

// own is the share of this rank's tokens.
func (e *expertExchange) own() *expertShare { return e.shares[e.me%len(e.shares)] }

// rowsAt is the rows [from, to) of the tokens at some experts.
func (s *expertShare) rowsAt(first, end int) (from, to int) {
	n := s.plan.Groups.Segments
	if n == 0 {
		return 0, 0
	}
	return int(s.offsets[first*n]), int(s.offsets[end*n])
}

// count finds this owner's rows, from the offsets of all plans.
func (e *expertExchange) count(r *parallel.Rank, offsets []int32) {
	first, end := e.experts(e.me)
	var own []int32
	for _, s := range e.shares {
		n := s.plan.Groups.Segments
		length := s.plan.Groups.Count*n + 1
		s.offsets, offsets = offsets[:length], offsets[length:]
		from, to := s.rowsAt(first, end)
		s.from, s.rows, s.source = from, to-from, s.plan.Source.ColRange(from, to)
		if n > 0 {
			for _, at := range s.offsets[first*n : end*n+1] {
				own = append(own, at-int32(from))
			}
		}
	}
	uploaded, at := parallel.Upload(r, own), 0
	for _, s := range e.shares {
		n := s.plan.Groups.Segments
		if n == 0 {
			continue
		}
		to := at + (end-first)*n + 1
		s.groups = kernels.Groups{Offsets: uploaded.ColRange(at, to), Count: end - first, Segments: n}
		at = to
	}
	e.cutAll(r)
}

// inOrder are the shares as this owner computes them: those of the ranks behind it first, its own last.
func (e *expertExchange) inOrder() (list []*expertShare) {
	for step := range e.shares {
		list = append(list, e.shares[(e.me+1+step)%len(e.shares)])
	}
	return list
}

// outputs computes what this owner's experts make of their tokens, unless it is in pieces. Where it is brought, the
// outputs of each rank's tokens go to it while those of the next are computed.
func (e *expertExchange) outputs(r *parallel.Rank, k *Keep, b *Batch, brought bool) {
	defer e.finish()
	if e.pieces != nil {
		return
	}
	if brought {
		e.receive(r)
	}
	for step, s := range e.inOrder() {
		last := step == len(e.shares)-1
		e.compute(r, s, k, func() {
			if last {
				e.gatherGradients(r, b) // behind the products of these rows
			}
		})
		if brought && !last {
			e.bring(r, step, parallel.Pair{Dst: e.received, Src: s.y})
		}
	}
}

// compute computes the outputs of a share. It calls gathered when its inputs have been gathered.
func (e *expertExchange) compute(r *parallel.Rank, s *expertShare, k *Keep, gathered func()) {
	if s.rows == 0 {
		s.y = r.Stack.New(e.all.DType, 0, e.all.Cols)
		return
	}
	s.y = e.m.Experts.forwardOf(r, s.rows, e.m.Experts.GateUp.gathered(r), func() kernels.Tensor {
		x := r.Stack.New(e.all.DType, s.rows, e.all.Cols)
		r.Dev.Gather(x, e.of(s, e.u, e.all), s.source)
		gathered()
		return x
	}, &s.groups, k, SaveExperts, &s.saved)
}

// receive takes memory for the rows of this rank's tokens from other owners.
func (e *expertExchange) receive(r *parallel.Rank) {
	if e.few() || !e.received.IsNil() {
		return
	}
	rows := e.tokensOf(e.me) * e.m.TopK
	switch {
	case r.Experts != nil:
		rows -= e.own().rows
	case kernels.CountsWork(r.Dev):
		rows -= rows / len(e.ranks)
	}
	e.received = r.Stack.New(e.all.DType, rows, e.all.Cols)
}

// bring begins to bring the rows of a step of inOrder to the rank of their tokens, and those of this rank's tokens from
// the owner that has computed them in the same step, to their places among rows like received.
func (e *expertExchange) bring(r *parallel.Rank, step int, pairs ...parallel.Pair) {
	if r.Experts == nil { // a plan
		return
	}
	n := len(e.ranks)
	to, from := (e.me+1+step)%n, (e.me+n-1-step)%n
	at, in, out := make([]int, n), make([]int, n), make([]int, n)
	out[to] = e.shares[to].rows
	at[from], in[from] = e.placeOf(from)
	x := r.Experts.Scatter(at, in, out, pairs...)
	x.Unpin() // what is allocated meanwhile is released meanwhile: all of it lies below
	e.coming = append(e.coming, x)
}

// await waits for what has begun to be brought.
func (e *expertExchange) await(r *parallel.Rank) {
	e.end(r, e.coming...)
	e.coming = nil
}

// end waits for rows of others that have begun to come.
func (e *expertExchange) end(r *parallel.Rank, list ...*parallel.Exchange) {
	if r.Experts == nil { // a plan
		return
	}
	r.Yield()
	e.wait(list...)
}

// wait is end that does not yield.
func (e *expertExchange) wait(list ...*parallel.Exchange) {
	for _, x := range list {
		x.WaitReceived()
	}
	e.read = append(e.read, list...)
}

// finish waits until the others have read this rank's rows, behind what has been computed of theirs meanwhile. Then
// these may be written and released.
func (e *expertExchange) finish() {
	for _, x := range e.read {
		x.Wait()
	}
	e.read = nil
}

// placeOf is where the rows of this rank's tokens from another owner lie among those from all others, and how many they
// are.
func (e *expertExchange) placeOf(owner int) (at, rows int) {
	own := e.own()
	from, to := own.rowsAt(e.experts(owner))
	if owner > e.me {
		return from - own.rows, to - from
	}
	return from, to - from
}

// parts are the rows of this rank's tokens in the order of their plan: those that were received, and those that this
// owner has computed.
func (e *expertExchange) parts(received, computed kernels.Tensor) kernels.PeerRows {
	own := e.own()
	y := kernels.PeerRows{Offsets: own.plan.Groups.Offsets}
	for owner := range e.ranks {
		part := computed
		if owner != e.me {
			at, rows := e.placeOf(owner)
			part = received.RowRange(at, at+rows)
		}
		expert, _ := e.experts(owner)
		from, _ := own.rowsAt(expert, expert)
		y.Parts, y.Base = append(y.Parts, part), append(y.Base, from)
		y.First = append(y.First, expert*own.plan.Groups.Segments)
	}
	return y
}

// combine writes the sums of this rank's tokens, [T, H], weighted by weights F32 [T, K], from what outputs has begun to
// bring; where residual is not nil, added to it.
func (e *expertExchange) combine(r *parallel.Rank, out, residual, weights kernels.Tensor) {
	defer e.finish()
	switch {
	case e.pieces != nil:
		e.combinePieces(r, out, residual, weights)
	case e.few():
		e.combineFew(r, out, residual, weights)
	case r.Experts == nil: // a plan
		e.countRows(r, e.received)
		r.Dev.Combine(out, residual, e.received, weights, e.own().plan.RowOf)
	default:
		e.await(r)
		if out.Rows > 0 {
			r.Transfers.CombinePeers(out, residual, e.parts(e.received, e.own().y), weights, e.own().plan.RowOf)
		}
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
	if b == nil || b.again != e.m || e.pieces != nil || e.ahead {
		return
	}
	e.ahead, e.gathered = true, beginGatherOthers(r, parallel.Pair{Dst: e.all, Src: b.dout})
	e.gathered.Unpin() // what is allocated meanwhile is released meanwhile: both lie below
}

// beginGradients begins to gather the gradients of the outputs of all ranks' tokens, unless they are on their way, and
// returns where they come.
func (e *expertExchange) beginGradients(r *parallel.Rank, dout kernels.Tensor) kernels.Tensor {
	all := e.all
	if e.pieces != nil {
		all = r.Stack.New(dout.DType, e.tokens(), dout.Cols)
	}
	if !e.ahead {
		e.gathered = beginGatherOthers(r, parallel.Pair{Dst: all, Src: dout})
		e.gathered.Unpin() // what is allocated meanwhile stays until it is awaited, or is released above both
	}
	return all
}

// backward writes the gradients of the inputs of this rank's tokens dx [T, H] and of their weights F32 [T, K], from
// those of their outputs. The gradients of experts' weights come behind those of inputs, which are on their way then.
func (e *expertExchange) backward(r *parallel.Rank, dx, dweights, dout kernels.Tensor) {
	defer e.finish()
	all := e.beginGradients(r, dout)
	if e.pieces != nil {
		e.end(r, e.gathered)
		e.backwardPieces(r, dx, dweights, dout, all)
		return
	}
	e.receive(r)
	received := r.Stack.New(kernels.F32, e.received.Rows, 1)
	computed, dw := e.inputGrads(r, dout, all, received)
	var rows []mlpRows
	for _, s := range e.shares {
		if s.rows > 0 {
			rows = append(rows, mlpRows{&s.saved, &s.groups})
		}
	}
	e.m.Experts.weightGrads(r, rows...)
	if r.Experts == nil { // a plan
		e.countRows(r, e.received, received)
		r.Dev.Combine(dx, kernels.Tensor{}, e.received, kernels.Tensor{}, e.own().plan.RowOf)
		e.planPieces(r)
		return
	}
	e.await(r)
	if dx.Rows > 0 {
		rowOf := e.own().plan.RowOf
		r.Transfers.CombinePeers(dx, kernels.Tensor{}, e.parts(e.received, computed), kernels.Tensor{}, rowOf)
		r.Transfers.TakePeers(dweights.Reshape(dweights.Len(), 1), e.parts(received, dw),
			rowOf.Reshape(1, rowOf.Len()))
	}
}

// inputGrads computes the gradients of the inputs and weights of all shares' rows, and begins to bring the others' to
// them. It returns those of this rank's tokens. Those are the last, behind which the others' go; where weights are
// trained the others' go behind their gradients, and this rank's are the first, behind which gradients of outputs come.
func (e *expertExchange) inputGrads(r *parallel.Rank, dout, all, received kernels.Tensor) (dx, dw kernels.Tensor) {
	own := e.own()
	first := e.m.Experts.GateUp.W.Trained() && r.Experts != nil
	if first {
		dx, dw = own.inputGrad(r, dout, e.routed)
	}
	e.end(r, e.gathered)
	others := e.inOrder()[:len(e.shares)-1]
	for step, s := range others {
		y, w := s.inputGrad(r, s.of(all), s.of(e.weights))
		e.bring(r, step, parallel.Pair{Dst: e.received, Src: y}, parallel.Pair{Dst: received, Src: w})
	}
	if !first {
		dx, dw = own.inputGrad(r, e.of(own, dout, all), e.of(own, e.routed, e.weights))
	}
	return dx, dw
}

// inputGrad is the gradients of the share's inputs [rows, H] and of their weights F32 [rows, 1], from those of the
// outputs of its tokens [T, H] and the weights of these, F32 [T, K].
func (s *expertShare) inputGrad(r *parallel.Rank, dout, weights kernels.Tensor) (dx, dweights kernels.Tensor) {
	dx, dweights = r.Stack.New(s.y.DType, s.rows, s.y.Cols), r.Stack.New(kernels.F32, s.rows, 1)
	if s.rows > 0 {
		r.Dev.CombineBackward(dx, dweights, dout, s.y, weights, s.plan.RowOf, s.from)
		dx = s.saved.inputGrad(r, dx, &s.groups)
	}
	return dx, dweights
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

// beginGatherOthers begins to fill tensors with the rows of the other ranks' tokens; nil: it counts them, in a plan.
func beginGatherOthers(r *parallel.Rank, pairs ...parallel.Pair) *parallel.Exchange {
	if r.Experts == nil {
		return countGather(r, pairs)
	}
	return r.Experts.GatherOthers(pairs...)
}

// countGather tells a plan how many bytes of other ranks come.
func countGather(r *parallel.Rank, pairs []parallel.Pair) *parallel.Exchange {
	bytes := 0
	for _, p := range pairs {
		bytes += p.Dst.Bytes() - p.Src.Bytes()
	}
	kernels.CountExchange(r.Dev, kernels.ExchangeTokens, bytes)
	return nil
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
	e.meet(r, told)
	none := &Routing{Experts: r.Stack.New(kernels.I32, 0, m.TopK), Weights: r.Stack.New(kernels.F32, 0, m.TopK)}
	u := r.Stack.New(d, 0, m.Experts.GateUp.W.W.Cols)
	e.gatherInputs(r, u)
	e.dispatch(r, none, nil)
	e.outputs(r, nil, nil, true)
	e.combine(r, u, kernels.Tensor{}, none.Weights)
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
