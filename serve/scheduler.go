package serve

import "slices"

// schedule chooses the rows of the next step. First each running sequence, in order of admission, gets one row if it
// decodes, or a chunk of its prompt. Then waiting sequences are admitted while slots, rows and pages last. Chunks of
// prompts have at most PrefillRows rows in total. A sequence that finds no free page preempts the youngest, which is
// prefilled again later.
func (e *Engine) schedule() []scheduled {
	budget, preempted := e.options.PrefillRows, e.Preempted
	var batch []scheduled
	for i := 0; i < len(e.running); i++ { // running shrinks when a younger sequence is preempted
		s := e.running[i]
		rows := min(len(s.tokens)-s.cached, max(budget, 1))
		if rows > 1 {
			budget -= rows
		}
		if !e.reserve(s, rows) {
			break // s was the youngest and was preempted itself
		}
		batch = append(batch, scheduled{s, rows})
	}
	if e.Preempted > preempted {
		return batch // whoever is admitted now would be preempted again
	}
	for len(e.waiting) > 0 && len(e.running) < e.options.Slots && budget > 0 {
		w, ok := e.admit(e.waiting[0], budget)
		if !ok {
			break
		}
		budget -= w.rows
		batch = append(batch, w)
	}
	return batch
}

// admissionShare is the number of running sequences for which admission leaves one page free.
const admissionShare = 4

// admit moves the first waiting sequence into the batch, with at most budget rows after its cached prefix. It reports
// false if there are too few pages for all of its tokens and one more for every fourth running sequence. Without that
// reserve it would soon be preempted. (Measured: the reserve halves preemptions at 1% more steps; a page for each
// running sequence leaves few preemptions, but 5% more steps.)
//
// A sequence shares the full pages of its longest cached prefix, except the page of its last token, whose row gives the
// next token, and those of rows that its prompt's log-probabilities still need. It also shares pages that another
// sequence writes in the same step: in each layer all rows of a step store their keys before any attends.
func (e *Engine) admit(s *sequence, budget int) (scheduled, bool) {
	var found []int32
	var prefix uint64
	if e.prefixCaching {
		most := len(s.tokens) - 1
		if s.req.PromptLogProbs {
			most = min(most, len(s.result.Prompt))
		}
		found, prefix = e.pages.match(s.tokens, most/e.options.PageRows)
	}
	cached := len(found) * e.options.PageRows
	rows := min(len(s.tokens)-cached, budget)
	if e.pagesFor(len(s.tokens))-len(found)+len(e.running)/admissionShare > e.pages.free-e.pages.countFree(found) {
		return scheduled{}, false
	}
	for _, page := range found {
		e.pages.retain(page)
	}
	e.Reused += cached
	e.waiting = e.waiting[1:]
	e.running = append(e.running, s)
	s.slot, e.freeSlots = e.freeSlots[len(e.freeSlots)-1], e.freeSlots[:len(e.freeSlots)-1]
	s.pages, s.cached, s.registered, s.prefixID = found, cached, len(found), prefix
	e.allocatePages(s, cached+rows)
	return scheduled{s, rows}, true
}

func (e *Engine) pagesFor(rows int) int { return (rows + e.options.PageRows - 1) / e.options.PageRows }

// reserve allocates the pages of the next rows of s, preempting younger sequences if none are free. It reports false if
// s itself was preempted.
func (e *Engine) reserve(s *sequence, rows int) bool {
	for e.pagesFor(s.cached+rows)-len(s.pages) > e.pages.free {
		youngest := e.running[len(e.running)-1]
		e.Preempted++
		e.preempt(youngest)
		if youngest == s {
			return false
		}
	}
	e.allocatePages(s, s.cached+rows)
	return true
}

// allocatePages gives s the pages of so many positions, which the next step writes, and registers those that it fills.
func (e *Engine) allocatePages(s *sequence, positions int) {
	for len(s.pages) < e.pagesFor(positions) {
		s.pages = append(s.pages, e.pages.allocate())
	}
	if !e.prefixCaching {
		return
	}
	for n := e.options.PageRows; (s.registered+1)*n <= positions; s.registered++ {
		s.prefixID = e.pages.register(s.pages[s.registered], s.prefixID, s.tokens[s.registered*n:(s.registered+1)*n])
	}
}

// preempt moves the youngest sequence s from the batch to the front of the queue.
func (e *Engine) preempt(s *sequence) {
	e.release(s)
	e.running = e.running[:len(e.running)-1]
	e.waiting = slices.Insert(e.waiting, 0, s)
}

// release frees the slot and the pages of a running sequence. The last page is freed first, so that pages of prefixes,
// which others may share, stay cached longest.
func (e *Engine) release(s *sequence) {
	for _, page := range slices.Backward(s.pages) {
		e.pages.release(page)
	}
	e.freeSlots = append(e.freeSlots, s.slot)
	s.pages, s.cached, s.registered, s.prefixID = nil, 0, 0, 0
}

// resetWhenIdle clears the prefix cache if nothing is in flight: weights may then change without Refresh.
func (e *Engine) resetWhenIdle() {
	if e.InFlight() == 0 {
		e.pages.reset()
	}
}
