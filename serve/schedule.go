package serve

import "slices"

// schedule chooses the rows of the next step: every running sequence in order of admission gets its next rows (one where it
// decodes, a piece of at most PrefillRows in all where it reads a prompt), then waiting sequences are admitted while slots,
// rows and pages last. A sequence that finds no page takes those of the youngest, which waits and reads its tokens again later.
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
		s := e.waiting[0]
		rows := min(len(s.tokens), budget)
		if e.pagesFor(rows) > len(e.free) {
			break
		}
		budget -= rows
		e.waiting = e.waiting[1:]
		e.running = append(e.running, s)
		s.slot, e.slots = e.slots[len(e.slots)-1], e.slots[:len(e.slots)-1]
		e.grow(s, rows)
		works = append(works, work{s, rows})
	}
	return works
}

func (e *Engine) pagesFor(rows int) int { return (rows + e.o.PageRows - 1) / e.o.PageRows }

// reserve gives s the pages of its next rows, preempting younger sequences. It reports false where s itself was preempted.
func (e *Engine) reserve(s *sequence, rows int) bool {
	for e.pagesFor(s.cached+rows)-len(s.pages) > len(e.free) {
		youngest := e.running[len(e.running)-1]
		e.preempt(youngest)
		if youngest == s {
			return false
		}
	}
	e.grow(s, s.cached+rows)
	return true
}

func (e *Engine) grow(s *sequence, positions int) {
	for len(s.pages) < e.pagesFor(positions) {
		n := len(e.free) - 1
		s.pages = append(s.pages, e.free[n])
		e.free = e.free[:n]
	}
}

func (e *Engine) preempt(s *sequence) {
	e.Preempted++
	e.yield(s)
}

// yield takes the youngest sequence s out; it waits in front of all others.
func (e *Engine) yield(s *sequence) {
	e.release(s)
	e.running = e.running[:len(e.running)-1]
	e.waiting = slices.Insert(e.waiting, 0, s)
}

func (e *Engine) release(s *sequence) {
	e.free = append(e.free, s.pages...)
	e.slots = append(e.slots, s.slot)
	s.pages, s.cached = nil, 0
}
