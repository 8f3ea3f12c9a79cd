package parallel

import (
	"fmt"
	"iter"
	"runtime/debug"

	"lockstep/kernels"
)

// Lanes are n ranks on the device of r, each with a stack of its own, which [Interleave] runs. The first is r.
func (r *Rank) Lanes(n int) []*Rank {
	for len(r.lanes) < n-1 {
		lane := &Rank{Dev: r.Dev, Stack: kernels.NewArena(r.Dev), ID: r.ID, Size: r.Size, Transfers: r.Transfers,
			tally: r.tally, aside: r.aside}
		if r.Data != nil {
			lane.Data, lane.Experts = r.Data.on(lane), r.Experts.on(lane)
			for _, g := range r.contexts {
				lane.contexts = append(lane.contexts, g.on(lane))
			}
		}
		r.lanes = append(r.lanes, lane)
	}
	return append([]*Rank{r}, r.lanes[:n-1]...)
}

// AllLanes are those that the rank has so far, itself first.
func (r *Rank) AllLanes() []*Rank { return r.Lanes(1 + len(r.lanes)) }

// Interleave runs a body on each lane, one at a time: a lane goes on until it calls [Rank.Yield], then the next one
// does, in order, and so around. Two micro-batches so hide each other's exchanges (two-batch overlap, DeepSeek-V3
// report, arXiv 2412.19437, section 3.2.1). All ranks have the same lanes, which yield at the same places: then the
// members of a group call it in the same order. The lanes run on the thread of the caller.
func Interleave(lanes []*Rank, body func(i int, r *Rank)) {
	if len(lanes) == 1 {
		body(0, lanes[0])
		return
	}
	next := make([]func() (struct{}, bool), len(lanes)) // nil: the lane has ended
	for i, r := range lanes {
		goOn, stop := iter.Pull(r.asSequence(func() { body(i, r) }))
		defer stop()
		next[i] = goOn
	}
	for left := len(lanes); left > 0; {
		for i, goOn := range next {
			if goOn == nil {
				continue
			}
			if _, ok := goOn(); !ok {
				next[i] = nil
				left--
			}
		}
	}
}

// abandoned is the panic of a lane when another has failed.
type abandoned struct{}

// asSequence is a body that yields.
func (r *Rank) asSequence(body func()) iter.Seq[struct{}] {
	return func(yield func(struct{}) bool) {
		defer func() {
			r.yield, r.Resumed = nil, nil
			switch p := recover().(type) {
			case nil, abandoned:
			case kernels.Fault:
				panic(p)
			default: // a bug: its stack is that of the lane
				panic(fmt.Sprintf("%v\n%s", p, debug.Stack()))
			}
		}()
		r.yield = func() {
			if !yield(struct{}{}) {
				panic(abandoned{})
			}
		}
		body()
	}
}

// Interleaved tells whether the rank is a lane of several that are running.
func (r *Rank) Interleaved() bool { return r.yield != nil }

// Yield lets the other lanes go on, before this one waits for an exchange or for numbers.
func (r *Rank) Yield() {
	if r.yield == nil {
		return
	}
	r.yield()
	if r.Resumed != nil {
		r.Resumed()
	}
}
