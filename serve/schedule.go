package serve

import "slices"

// schedule chooses the rows of the next step: every running sequence in order of admission gets its next rows (one
// where it decodes, a piece of at most PrefillRows in all where it reads a prompt), then waiting sequences are admitted
// while slots, rows and pages last. A sequence that finds no page takes those of the youngest, which waits and reads
// its tokens again later.
func (e *Engine) schedule() []work {
	budget, preempted := e.o.PrefillRows, e.Preempted
	var works []work
	for i := 0; i < len(e.running); i++ { // running shrinks when a younger sequence is preempted
		s := e.running[i]
		rows := min(len(s.tokens)-s.cached, max(budget, 1))
		if rows > 1 {
			budget -= rows
		}
		if !e.reserve(s, rows) {
			break // s was the youngest and has given way itself
		}
		works = append(works, work{s, rows})
	}
	if e.Preempted > preempted {
		return works // admitting now would only be preempted again
	}
	for len(e.waiting) > 0 && len(e.running) < e.o.Slots && budget > 0 {
		w, ok := e.admit(e.waiting[0], budget)
		if !ok {
			break
		}
		budget -= w.rows
		works = append(works, w)
	}
	return works
}

// admissionShare is the number of running sequences for which admission leaves one page free.
const admissionShare = 4

// admit starts the sequence that waits first, with at most so many rows behind the pages that it shares; false: there
// are too few pages for all of its tokens and one more for every fourth that runs, without which it would soon be
// preempted and read again. (Measured: half of the preemptions at 1% more steps; a page for each leaves few
// preemptions, but 5% more steps.)
//
// Sequences share the whole pages at their beginnings that hold the same tokens, but never the page of the last token,
// whose row gives the next one. A page that another sequence writes in this very step is shared too: in each layer all
// rows of a step store their keys before any attends. Where a layer keeps a state of the sequence instead of keys,
// nothing is shared: the state at the end of a page is not kept.
func (e *Engine) admit(s *sequence, budget int) (work, bool) {
	var found []int32
	var chain uint64
	if e.shares {
		found, chain = e.pages.find(s.tokens, (len(s.tokens)-1)/e.o.PageRows)
	}
	cached := len(found) * e.o.PageRows
	rows := min(len(s.tokens)-cached, budget)
	if e.pagesFor(len(s.tokens))-len(found)+len(e.running)/admissionShare > e.pages.free-e.pages.idle(found) {
		return work{}, false
	}
	for _, page := range found {
		e.pages.hold(page)
	}
	e.Reused += cached
	e.waiting = e.waiting[1:]
	e.running = append(e.running, s)
	s.slot, e.slots = e.slots[len(e.slots)-1], e.slots[:len(e.slots)-1]
	s.pages, s.cached, s.offered, s.chain = found, cached, len(found), chain
	e.grow(s, cached+rows)
	return work{s, rows}, true
}

func (e *Engine) pagesFor(rows int) int { return (rows + e.o.PageRows - 1) / e.o.PageRows }

// reserve gives s the pages of its next rows, preempting younger sequences. It reports false where s itself was
// preempted.
func (e *Engine) reserve(s *sequence, rows int) bool {
	for e.pagesFor(s.cached+rows)-len(s.pages) > e.pages.free {
		youngest := e.running[len(e.running)-1]
		e.Preempted++
		e.yield(youngest)
		if youngest == s {
			return false
		}
	}
	e.grow(s, s.cached+rows)
	return true
}

// grow gives s the pages of so many positions, which the step that is being made will write, and offers those that it
// fills.
func (e *Engine) grow(s *sequence, positions int) {
	for len(s.pages) < e.pagesFor(positions) {
		s.pages = append(s.pages, e.pages.take())
	}
	if !e.shares {
		return
	}
	for n := e.o.PageRows; (s.offered+1)*n <= positions; s.offered++ {
		s.chain = e.pages.offer(s.pages[s.offered], s.chain, s.tokens[s.offered*n:(s.offered+1)*n])
	}
}

// yield takes the youngest sequence s out; it waits in front of all others.
func (e *Engine) yield(s *sequence) {
	e.release(s)
	e.running = e.running[:len(e.running)-1]
	e.waiting = slices.Insert(e.waiting, 0, s)
}

// release takes back what a running sequence holds, the end first: beginnings are what others may ask for, and stay
// longest.
func (e *Engine) release(s *sequence) {
	for _, page := range slices.Backward(s.pages) {
		e.pages.drop(page)
	}
	e.slots = append(e.slots, s.slot)
	s.pages, s.cached, s.offered, s.chain = nil, 0, 0, 0
}

// rest forgets shared pages where nothing is in flight: weights may change then without a word.
func (e *Engine) rest() {
	if e.InFlight() == 0 {
		e.pages.forget()
	}
}
