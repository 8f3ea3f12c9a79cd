package model

import (
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// The units of a model are what one gradient exchange carries: the embedding, each block, the head.
const embeddingUnit = 0

func blockUnit(block int) int { return 1 + block }

func (m *Model) headUnit() int { return 1 + len(m.Blocks) }

// Place is that of a micro-batch among the Of micro-batches of a step, or of a share among its shares. The one At is
// computed by rank At modulo the number of ranks. Open: others of the step follow, whose places begin from 0 again.
type Place struct {
	At, Of int
	Open   bool
}

// gradients are where gradients of a rank lie. The only rank adds them to their sums. Of several, one adds to the sums
// of a unit at a time, in the order of shares: the unit's sums pass from rank to rank around a ring, and rest with the
// owners of its shards between two rounds.
//
// The sums are a chain over segments. A rank whose share has one segment computes its gradient by itself, while the
// sums are on their way, and adds it when the unit below has been computed: it does not wait, and a step of n ranks
// ends later by n-1 copies of a unit. One with several segments receives the sums first, so it is at a block when the
// next rank is at the block above; of the head, which takes longest, it computes a gradient of each segment, unless
// those of several micro-batches would have to be in memory. Gradients of adapters are small: there a rank computes one
// of each of its segments, adds them in order, and does not wait either. So it does where experts are cut over ranks,
// or the rows of a sequence, since those ranks have to be at the same block. What they compute at a time follows one
// another, so sums then go around the ring for each pass, and not once for a share; of the embedding, where experts are
// cut, rows go to the owner of its sums instead (see embeddingAtOwner). In every case every sum is that of one rank.
type gradients struct {
	sums  kernels.Tensor // F32 [1, n]: of the rank's shards, over a step
	units []gradientUnit // nil: the rank is the only one
	slots [2]gradientSlot
	next  int  // the slot that the next unit takes
	small bool // they are of adapters of dense weights
}

// gradientParts are gradients of a pass's segments that have not been added to the sums: F32 [1, n] on the stack, of
// the unit and pass that are computed and of those before, which are pending. The first rank has none where its shares
// follow one another: the sums are there.
type gradientParts struct {
	of      [2]kernels.Tensor
	next    int // where the next ones are
	pending pendingPart

	headApart bool // there are several segments, and only those of the head have gradients of their own
}

// pendingPart is the gradients of a pass in a unit, which are to be added to its sums.
type pendingPart struct {
	unit *gradientUnit // nil: there are none
	pass int
}

// gradientUnit says how the gradients of a unit's parameters lie in a slot.
type gradientUnit struct {
	number  int
	columns int
	params  []gradientView
	owned   []ownedColumns
	rest    []kernels.Event // of the first rank: after these the owners have the sums of an open step; nil: none
}

// gradientView is a parameter's gradient in a slot.
type gradientView struct {
	param *Param
	grad  *kernels.Tensor // its Grad or HeadGrad
	like  kernels.Tensor  // its weight
	at    int             // first column
	whole bool            // a product writes all of it, see [Param.fresh]
}

// ownedColumns are columns of a slot that one rank sums.
type ownedColumns struct {
	owner, at, columns int
	atSum              int            // the first column of the owner's sums
	sum                kernels.Tensor // in the memory of the owner
}

// gradientSlot is memory for the gradients of a unit, F32 [1, n].
type gradientSlot struct {
	t    kernels.Tensor
	used []kernels.Event    // after which it may be written again
	sent *parallel.Exchange // that takes it to the next rank; nil: none
}

// unitBackward is the backward pass of a unit.
type unitBackward struct {
	unit     int
	backward func(p *Pass)
}

// during runs the backward pass of units for each pass of a share, in order, with the sums of what comes before in
// their gradients. Where those of each pass are apart, a pass goes through all of the units before the next one does:
// sums of a unit, which a backward as short as the embedding's would wait for, are added behind the other's.
func (g *gradients) during(r *parallel.Rank, s *Share, units ...unitBackward) {
	if s.parts.of[0].IsNil() {
		for _, of := range units {
			g.duringUnit(r, s, of.unit, of.backward)
		}
		return
	}
	for i, p := range s.Passes {
		for _, of := range units {
			g.duringPass(r, s, of, i, p)
		}
	}
}

// duringPass runs the backward pass of a unit for pass i with gradients of its own.
func (g *gradients) duringPass(r *parallel.Rank, s *Share, of unitBackward, i int, p *Pass) {
	u, parts := &g.units[of.unit], &s.parts
	if u.columns == 0 {
		of.backward(p)
		return
	}
	u.anew(r, parts.of[parts.next], p.Segments.Count, func() { of.backward(p) })
	g.finishPending(r, s)
	parts.next, parts.pending = 1-parts.next, pendingPart{u, i}
}

// duringUnit is during of a unit whose passes add to one gradient.
func (g *gradients) duringUnit(r *parallel.Rank, s *Share, unit int, backward func(p *Pass)) {
	each := func() {
		for _, p := range s.Passes {
			backward(p)
		}
	}
	if len(g.units) == 0 || g.units[unit].columns == 0 {
		each()
		return
	}
	if r.Data != nil && s.Place.Of == 0 && !s.idle() {
		panic("model: a share of several ranks has no place in its step")
	}
	u := &g.units[unit]
	if s.parts.headApart && unit == len(g.units)-1 {
		g.duringHead(r, s, u, backward)
		return
	}
	g.pass(r, u, s.Place, func(t kernels.Tensor, anew bool) {
		if anew {
			u.anew(r, t, 1, each)
		} else {
			u.viewed(r, t, 1, nil, each)
		}
	})
}

// duringHead computes a gradient for each segment of the head, and adds them when all have been computed. The head is
// the first unit of a backward pass and the longest: a rank that waited for its sums would begin when the rank before
// has ended.
func (g *gradients) duringHead(r *parallel.Rank, s *Share, u *gradientUnit, backward func(p *Pass)) {
	defer r.Stack.Release(r.Stack.Mark())
	p := s.Passes[0]
	all := p.Segments
	p.Segments = segmentsApart(all)
	part := r.Stack.New(kernels.F32, 1, p.Segments.Count*u.columns)
	u.anew(r, part, p.Segments.Count, func() { backward(p) })
	g.addPart(r, u, p, part)
	p.Segments = all
}

// anew runs the backward pass of a unit with so many gradients of each matrix in a slot or a part, which start from 0:
// those that a product writes need no zeros.
func (u *gradientUnit) anew(r *parallel.Rank, t kernels.Tensor, count int, backward func()) {
	fresh, from := make([]bool, len(u.params)), 0 // columns from here on may have to be cleared
	for i, v := range u.params {
		if fresh[i] = v.whole; v.whole {
			zeroColumns(r, t, count*from, count*v.at)
			from = u.end(i)
		}
	}
	zeroColumns(r, t, count*from, count*u.columns)
	u.viewed(r, t, count, fresh, backward)
	if i := slices.Index(fresh, true); i >= 0 {
		panic("model: no gradient came to " + u.params[i].param.Name)
	}
}

// end is the first column behind a parameter.
func (u *gradientUnit) end(i int) int {
	if i+1 < len(u.params) {
		return u.params[i+1].at
	}
	return u.columns
}

// zeroColumns clears columns of a vector, which may be more than a device counts in 32 bits.
func zeroColumns(r *parallel.Rank, t kernels.Tensor, from, to int) {
	const most = 1 << 30
	for ; from < to; from += most {
		r.Dev.Zero(t.ColRange(from, min(from+most, to)))
	}
}

// segmentsApart is segments with gradients of their own.
func segmentsApart(s *kernels.Groups) *kernels.Groups {
	return &kernels.Groups{Offsets: s.Offsets, Count: s.Segments, Segments: 1}
}

// begin makes room for the gradients of a share, on the stack. It cuts those of each segment apart where ranks are
// together at a block.
func (g *gradients) begin(r *parallel.Rank, s *Share, together bool) {
	if len(g.units) == 0 || r.ID == 0 && !r.Interleaved() && !s.idle() && !s.Dealt {
		return
	}
	count := 1
	if together || g.small && !s.Several {
		for _, p := range s.Passes {
			p.Segments = segmentsApart(p.Segments)
			count = max(count, p.Segments.Count)
		}
	} else if s.Several || s.Passes[0].Segments.Segments > 1 {
		s.parts.headApart = !s.Several
		return
	}
	for i := range s.parts.of {
		s.parts.of[i] = r.Stack.New(kernels.F32, 1, count*g.slots[0].t.Cols)
	}
}

// finishPending adds the gradients of the pass before, in the same unit or the one above, the last one of a share at
// its end. The other lanes add a pass before this one adds its next.
func (g *gradients) finishPending(r *parallel.Rank, s *Share) {
	pending := s.parts.pending
	if pending.unit == nil {
		return
	}
	s.parts.pending = pendingPart{}
	if pending.pass > 0 {
		r.Yield()
	}
	g.addPart(r, pending.unit, s.Passes[pending.pass], s.parts.of[1-s.parts.next])
}

// addPart adds the gradients of a pass's segments to the sums of a unit in order.
func (g *gradients) addPart(r *parallel.Rank, u *gradientUnit, p *Pass, part kernels.Tensor) {
	if !p.Idle {
		g.pass(r, u, p.Place, func(t kernels.Tensor, anew bool) {
			if anew {
				r.Dev.Zero(t)
			}
			u.addPart(r, t, part, p.Segments.Count)
		})
	}
}

// addPart adds the gradients of so many segments to their sums.
func (u *gradientUnit) addPart(r *parallel.Rank, t, part kernels.Tensor, count int) {
	if count == 1 {
		r.Dev.Accumulate(t, part.ColRange(0, u.columns))
		return
	}
	var sums []kernels.PartSum
	for _, v := range u.params {
		n := v.like.Rows * v.like.Cols
		for at := v.at; at < v.at+v.like.Len(); at += n { // of an expert, or the only one
			of := part.ColRange(count*at, count*(at+n)).Reshape(count, n)
			sums = append(sums, kernels.PartSum{Dst: t.ColRange(at, at+n), Parts: of})
		}
	}
	r.Dev.Accumulate(sums[0].Dst, sums[0].Parts, sums[1:]...)
}

// pass takes the sums of a unit from the share before, lets add add to them, and sends them on. Anew: they are 0, and
// anything lies there.
func (g *gradients) pass(r *parallel.Rank, u *gradientUnit, at Place, add func(t kernels.Tensor, anew bool)) {
	s := &g.slots[g.next]
	g.next = 1 - g.next
	t := s.t.ColRange(0, u.columns)
	add(t, u.receive(r, s, t, at))
	u.send(r, s, t, at)
}

// SmallGradients tells whether those that pass from rank to rank are of adapters of dense weights alone: no rank waits
// for the one before, however many segments it has, unless micro-batches go through the model together.
func (m *Model) SmallGradients() bool { return m.grads.small }

// receive fills a slot with what the shares before have summed. Anew: there are none.
func (u *gradientUnit) receive(r *parallel.Rank, s *gradientSlot, t kernels.Tensor, at Place) (anew bool) {
	switch {
	case r.Data == nil: // a plan
		kernels.CountExchange(r.Dev, kernels.ExchangeGradient, t.Bytes())
		r.Dev.Zero(t)
	case at.At == 0 && u.rest == nil:
		r.Transfers.WaitEvents(s.free()...)
		return true
	case r.ID > 0:
		r.Data.Receive(r.ID-1, t, s.free()...).Wait()
	default: // the last rank has brought the sums of the round before to their owners
		brought := u.rest
		if u.rest = nil; at.At > 0 {
			brought = r.Data.Await(r.Size-1, u.number)
		}
		after := append(s.free(), brought...)
		var copied []kernels.Event
		for _, o := range u.owned {
			copied = append(copied, r.Transfers.CopyPeer(after, kernels.PeerCopy{Dst: o.of(t), Src: o.sum}))
		}
		r.Transfers.WaitEvents(copied...)
	}
	return false
}

// send passes a slot on to the next rank, or at the end of a round to the owners.
func (u *gradientUnit) send(r *parallel.Rank, s *gradientSlot, t kernels.Tensor, at Place) {
	if r.Data == nil {
		return
	}
	done, last := r.Transfers.Record(), at.At == at.Of-1
	s.used = []kernels.Event{done}
	if !last && r.ID < r.Size-1 {
		s.sent = r.Data.Send(r.ID+1, t, done)
		return
	}
	for _, o := range u.owned {
		s.used = append(s.used, r.Transfers.CopyPeer([]kernels.Event{done},
			kernels.PeerCopy{Dst: o.sum, Src: o.of(t)}))
	}
	switch {
	case last && !at.Open:
	case r.ID == 0:
		u.rest = slices.Clone(s.used)
	default:
		r.Data.Notify(0, u.number, s.used...)
	}
}

// RestGradients ends the gradients of micro-batches whose step goes on: their sums are with the owners, where the rank
// of the last one has brought them.
func (m *Model) RestGradients(r *parallel.Rank, last int) {
	for i := range m.grads.units {
		if u := &m.grads.units[i]; r.Data != nil && r.ID == 0 && last > 0 && u.columns > 0 {
			u.rest = r.Data.Await(last, u.number)
		}
	}
}

// viewed runs the backward pass of a unit with the parameters' gradients in a slot or a part, also when other lanes
// have had them elsewhere.
func (u *gradientUnit) viewed(r *parallel.Rank, t kernels.Tensor, count int, fresh []bool, backward func()) {
	u.view(t, count, fresh)
	r.Resumed = func() { u.view(t, count, fresh) }
	backward()
	r.Resumed = nil
}

// view puts the parameters' gradients into a slot, or so many of each matrix, of segments, into a part: one below the
// other. Where fresh, if it is not nil, their next product writes over what lies there.
func (u *gradientUnit) view(t kernels.Tensor, count int, fresh []bool) {
	for i, v := range u.params {
		if v.param.fresh = nil; fresh != nil {
			v.param.fresh = &fresh[i]
		}
		like := v.like
		like.Groups *= count
		*v.grad = matrices(t, count*v.at, like)
	}
}

// free is when the slot may be written again.
func (s *gradientSlot) free() []kernels.Event {
	if s.sent != nil {
		s.used, s.sent = append(s.used, s.sent.Events()...), nil
	}
	return s.used
}

// FinishGradients ends the gradients of a step, when all its micro-batches have been computed: the sums of the rank's
// shards are there, with the head's share of a tied embedding in the embedding's own. Weights may be changed.
func (m *Model) FinishGradients(r *parallel.Rank) {
	m.sharded.drop()
	if len(m.grads.units) > 0 && r.Data != nil {
		for i := range m.grads.slots {
			r.Transfers.WaitEvents(m.grads.slots[i].free()...)
		}
		for i := range m.grads.units {
			m.grads.units[i].rest = nil
		}
		r.Data.Barrier()
	}
	m.SendHeadGrad(r)
	m.awaitHeadGrad(r)
	for _, s := range m.Shards {
		if !s.HeadGrad.IsNil() {
			r.Dev.Accumulate(s.Grad, s.HeadGrad.Reshape(1, s.HeadGrad.Len()))
			r.Dev.Zero(s.HeadGrad)
		}
	}
	m.freeHeadGrad(r)
	m.sumShared(r)
}

// headShare is the head's share of a tied embedding's gradient, on its way from a pipeline's last rank, which has the
// head, to the first, which has the embedding.
type headShare struct {
	sent *parallel.Exchange // nil: it has not begun, or is over
	free []kernels.Event    // of the first rank: then it may come
}

// SendHeadGrad begins to bring the head's share of a tied embedding to the first rank of a pipeline. Ranks call it
// behind their last backward of a step, so that it comes behind what the others still compute, or not at all:
// [Model.FinishGradients] begins what has not begun, and waits.
func (m *Model) SendHeadGrad(r *parallel.Rank) {
	if h := &m.headShare; m.stages != nil && m.TiesHead() && h.sent == nil {
		switch {
		case r.Data == nil: // a plan
			if r.ID == 0 {
				kernels.CountExchange(r.Dev, kernels.ExchangeStages, m.Head.W.HeadGrad.Bytes())
			}
		case r.ID == m.Stages()-1:
			h.sent = r.Data.Send(0, m.Head.W.HeadGrad, r.Transfers.Record())
		case r.ID == 0:
			if h.free == nil {
				h.free = []kernels.Event{r.Transfers.Record()}
			}
			h.sent = r.Data.Receive(m.Stages()-1, m.Head.W.HeadGrad, h.free...)
			h.free = nil
		}
	}
}

// awaitHeadGrad ends SendHeadGrad.
func (m *Model) awaitHeadGrad(r *parallel.Rank) {
	if h := &m.headShare; h.sent != nil {
		h.sent.Wait()
		h.sent = nil
		if r.ID > 0 {
			r.Dev.Zero(m.Head.W.HeadGrad)
		}
	}
}

// freeHeadGrad lets the share of the next step come, when that of this one has been added.
func (m *Model) freeHeadGrad(r *parallel.Rank) {
	if m.stages != nil && r.Data != nil && r.ID == 0 && m.TiesHead() {
		m.headShare.free = []kernels.Event{r.Transfers.Record()}
	}
}

// gradientUnits lays the gradients of parameters out, each unit by itself.
func (m *Model) gradientUnits(list []*Param) []gradientUnit {
	units, whole := make([]gradientUnit, m.headUnit()+1), m.products()
	for i := range units {
		units[i].number = i
	}
	for _, p := range list {
		if p != m.Embed.Param || !m.ExpertParallel() {
			units[p.unit].add(&p.Grad, p, m.Shards, false, whole[p])
		}
		if m.tied(p) {
			units[m.headUnit()].add(&p.HeadGrad, p, m.Shards, true, true)
		}
	}
	return units
}

// products are parameters whose gradient is written whole by one product.
func (m *Model) products() map[*Param]bool {
	out := map[*Param]bool{}
	if m.Head.W != m.Embed.Param {
		out[m.Head.W] = true
	}
	for _, l := range m.linears() {
		if l.byHead {
			continue
		}
		out[l.W] = true
		for _, s := range l.Subs {
			if s.LoRA != nil {
				out[s.LoRA.A], out[s.LoRA.B] = true, true
			}
		}
	}
	return out
}

// add lays out a gradient of a parameter, and finds the shards that are to sum it.
func (u *gradientUnit) add(grad *kernels.Tensor, p *Param, shards []*Shard, head, whole bool) {
	u.params = append(u.params, gradientView{p, grad, p.W, u.columns, whole})
	for _, s := range shards {
		if s.Param != p {
			continue
		}
		o := ownedColumns{owner: s.Owner, at: u.columns, columns: aligned(s.W.Len()), atSum: s.atSum}
		if head {
			o.atSum += o.columns
		}
		u.columns += o.columns
		if n := len(u.owned); n > 0 && u.owned[n-1].continues(o) {
			u.owned[n-1].columns += o.columns
		} else {
			u.owned = append(u.owned, o)
		}
	}
}

// of is the columns of a slot.
func (o ownedColumns) of(t kernels.Tensor) kernels.Tensor { return t.ColRange(o.at, o.at+o.columns) }

// continues tells whether other follows o both in the slot and in the owner's sums: they are one copy.
func (o ownedColumns) continues(other ownedColumns) bool {
	return o.owner == other.owner && o.at+o.columns == other.at && o.atSum+o.columns == other.atSum
}
