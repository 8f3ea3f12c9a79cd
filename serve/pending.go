package serve

import "slices"

// Pending is a request in flight with its result so far, as a checkpoint stores it.
type Pending struct {
	Index   int
	Request Request
	Result  Result
}

// Pending lists the requests in flight in their order. It must be called right after Refresh. An engine that resumes
// the list continues to the same bits.
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

// Resume queues pending requests.
func (e *Engine) Resume(list []Pending) {
	for _, p := range list {
		e.waiting = append(e.waiting, &sequence{index: p.Index, req: p.Request, tokens: slices.Concat(p.Request.Prompt,
			p.Result.IDs), result: p.Result})
	}
}
