package trainer

import (
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
)

// inFlight is a micro-batch between a chunk's forward and its gradients, and the lane that has its memory: the first to
// come is the first to go, which no stack can do.
type inFlight struct {
	lane  *parallel.Rank
	empty kernels.Mark
	box   *box
	pass  *model.Pass
	sent  []*parallel.Exchange // of the lane's memory, that the other ranks may not have taken
	later *parallel.WeightGrads
}

// box is memory for the rows that a micro-batch gets from another rank, and for their gradient, which goes back. Of
// chunks that get rows there is one more than there are lanes: so rows come while what was in the lane before is still
// computed, and the lane goes on while the gradient is on its way.
type box struct {
	rank   *parallel.Rank
	memory *kernels.Arena
	empty  kernels.Mark
	ready  []kernels.Event    // copies may write the memory; nil: a plan
	sent   *parallel.Exchange // the gradient; nil: it has been taken, or stays
}

// openLanes gives each chunk as many lanes as it has micro-batches in flight, and gradients that are put off their
// arenas. The rank's own stack has what stays for the step.
func (p *pipeline) openLanes(r *parallel.Rank) {
	last := 1
	more := func(n int) []*parallel.Rank {
		last += n
		return r.Lanes(last)[last-n:]
	}
	for i, st := range p.chunks {
		var free []*inFlight
		for _, lane := range more(p.tasks.InFlight(r.ID, i)) {
			free = append(free, &inFlight{lane: lane, empty: lane.Stack.Mark()})
		}
		n := len(free)
		if !st.First() {
			n++
		}
		var boxes []*box
		for _, lane := range more(n) {
			b := &box{rank: r, memory: lane.Stack, empty: lane.Stack.Mark()}
			b.free()
			boxes = append(boxes, b)
		}
		p.free, p.boxes = append(p.free, free), append(p.boxes, boxes)
	}
	for _, lane := range more(p.tasks.InWaiting(r.ID)) {
		p.copies = append(p.copies, lane.Stack)
	}
}

// begin gives a micro-batch a lane and a box.
func (p *pipeline) begin(task schedule.Task) *inFlight {
	free, boxes := &p.free[task.Chunk], &p.boxes[task.Chunk]
	f := (*free)[0]
	f.clear()
	f.box = (*boxes)[0]
	f.box.clear()
	*free, *boxes = (*free)[1:], (*boxes)[1:]
	p.inFlight[passing{task.Chunk, task.Micro}] = f
	return f
}

// end gives the lane and the box of a micro-batch back.
func (p *pipeline) end(task schedule.Task) {
	at := passing{task.Chunk, task.Micro}
	f := p.inFlight[at]
	f.box.free()
	p.free[task.Chunk], p.boxes[task.Chunk] = append(p.free[task.Chunk], f), append(p.boxes[task.Chunk], f.box)
	delete(p.inFlight, at)
}

// clear empties the lane, when the other ranks have taken what was sent from it.
func (f *inFlight) clear() {
	for _, x := range f.sent {
		x.Wait()
	}
	f.lane.Stack.Release(f.empty)
	f.sent, f.pass, f.later = nil, nil, nil
}

// free lets copies write the box behind what is enqueued.
func (b *box) free() {
	if b.rank.Data != nil {
		b.ready = []kernels.Event{b.rank.Transfers.Record()}
	}
}

// clear empties the box, when the gradient has been taken. What is enqueued next waits for that, and so do copies.
func (b *box) clear() {
	if b.sent != nil {
		taken := b.sent.Events()
		b.rank.Transfers.WaitEvents(taken...)
		b.ready, b.sent = append(b.ready, taken...), nil
	}
	b.memory.Release(b.empty)
}

// taken tells whether other ranks have come for all that was sent from a lane and a box.
func taken(f *inFlight, b *box) bool {
	for _, x := range f.sent {
		if !x.Taken() {
			return false
		}
	}
	return b.sent == nil || b.sent.Taken()
}

// receive brings rows of another rank, or their gradients, and makes what is enqueued next wait for them.
func (f *inFlight) receive(from int, t kernels.Tensor) {
	kernels.CountExchange(f.lane.Dev, kernels.ExchangeStages, t.Bytes())
	if f.lane.Data != nil {
		f.lane.Data.Receive(from, t, f.box.ready...).Wait()
	}
}

// send offers what has been computed to another rank. It waits for nothing.
func (f *inFlight) send(to int, t kernels.Tensor) *parallel.Exchange {
	if f.lane.Data == nil {
		return nil
	}
	return f.lane.Data.Send(to, t, f.lane.Transfers.Record())
}
