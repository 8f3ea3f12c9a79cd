package serve

import "slices"

// Pending is a request without a result, with the tokens that it has so far: what a checkpoint keeps of an engine.
type Pending struct {
	Index   int
	Request Request
	Result  Result
}

// Pending lists the requests in flight in the order in which they go on. Right after Refresh an engine that resumes the
// list goes on to the same bits.
func (e *Engine) Pending() []Pending {
	if len(e.running) > 0 {
		panic("serve: Pending before Refresh")
	}
	list := make([]Pending, len(e.waiting))
	for i, s := range e.waiting {
		list[i] = Pending{s.index, s.req, s.result}
	}
	return list
}

// Resume puts pending requests back.
func (e *Engine) Resume(list []Pending) {
	for _, p := range list {
		e.waiting = append(e.waiting, &sequence{index: p.Index, req: p.Request, tokens: slices.Concat(p.Request.Prompt,
			p.Result.IDs), result: p.Result})
	}
}
