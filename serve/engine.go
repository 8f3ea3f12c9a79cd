package serve

import (
	"context"
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/parallel"
)

// Options size the engine. They never change a bit of a result.
type Options struct {
	Slots       int  // sequences in flight
	PageRows    int  // positions of a cache page
	Pages       int  // 0: as many as Slots sequences of the longest need, at most 1 GiB
	Longest     int  // positions of a sequence; 0: the model's length
	PrefillRows int  // prompt tokens that one step takes at most
	Apart       bool // sequences that begin with the same tokens share no pages
}

// Counters say what an engine has done.
type Counters struct {
	Steps     int
	Prefilled int // rows computed of prompts, and of sequences that are read again
	Reused    int // rows of such that were not, for their keys were there
	Decoded   int // rows of tokens that the step before had drawn
	Drawn     int // tokens, forced ones too
	Preempted int // times that a sequence gave its pages to older ones
	Cancelled int
}

const defaultCacheBytes = 1 << 30

// Engine runs requests through one model on one rank. Each step is one forward over the rows of all sequences in
// flight: the next piece of prompts and one row of every sequence that decodes.
type Engine struct {
	r       *parallel.Rank
	m       *model.Model
	o       Options
	cache   *model.Cache
	pages   *pages
	shares  bool        // sequences may share pages
	slots   []int       // free ones
	waiting []*sequence // in arrival order; preempted ones in front
	running []*sequence // in order of admission
	version int         // of the weights
	// observe, where set, receives the logits of every row computed (the proof).
	observe func(s *sequence, position int, logits []float32)
	// watch, where set, is told what a step is about to do, and for whom it draws.
	watch func(works []work, ready []*sequence)
	Counters
}

type sequence struct {
	index  int // of its request
	req    Request
	tokens []int32 // prompt, then what was generated
	cached int     // positions in the cache
	result Result
	// While it runs:
	pages   []int32
	offered int    // of pages, those that others may share
	chain   uint64 // of their tokens
	slot    int
}

// NewEngine makes an engine; its cache is taken from mem.
func NewEngine(r *parallel.Rank, m *model.Model, mem *kernels.Arena, o Options) (*Engine, error) {
	if o.Slots <= 0 || o.PageRows <= 0 || o.PrefillRows <= 0 || o.Pages < 0 {
		return nil, fmt.Errorf("rollout: want slots, page_rows and prefill_rows above 0")
	}
	page, slot := m.CacheBytes(o.PageRows)
	if o.Pages == 0 {
		longest := m.MaxLength
		if o.Longest > 0 {
			longest = min(o.Longest, longest)
		}
		perSequence := (longest + o.PageRows - 1) / o.PageRows
		enough := o.Slots*perSequence + o.Slots/admissionShare // the last sequence is admitted whatever the others hold
		o.Pages = max(perSequence, min(enough, (defaultCacheBytes-o.Slots*slot)/max(page, 1)))
	}
	size := model.CacheSize{Pages: o.Pages, PageRows: o.PageRows, Slots: o.Slots}
	mem.Reserve(meta.Bytes(r.Dev, func(_ kernels.Device, mem *kernels.Arena) { m.NewCache(mem, size) }))
	e := &Engine{r: r, m: m, o: o, cache: m.NewCache(mem, size)}
	e.pages, e.shares = newPages(o.Pages, o.PageRows), !o.Apart && slot == 0
	for slot := range o.Slots {
		e.slots = append(e.slots, o.Slots-1-slot)
	}
	return e, nil
}

// Run generates every request and returns the results in their order. Requests wait while the engine is full; none is
// lost. What was submitted before must be waiting (see Refresh) and goes on waiting.
func (e *Engine) Run(ctx context.Context, reqs []Request) ([]Result, error) {
	if len(e.running) > 0 {
		panic("serve: Run among running sequences")
	}
	defer func(waiting []*sequence) { e.waiting = waiting }(e.waiting)
	e.waiting = nil
	results := make([]Result, len(reqs))
	for i, q := range reqs {
		if err := e.Submit(i, q); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
	}
	for e.InFlight() > 0 {
		done, err := e.Step(ctx)
		if err != nil {
			e.abandon()
			return nil, err
		}
		for _, d := range done {
			results[d.Index] = d.Result
		}
	}
	return results, e.r.Dev.Sync()
}

// Submit puts a request behind those that wait; index names its result.
func (e *Engine) Submit(index int, q Request) error {
	if err := q.validate(e.m.Vocab, e.m.MaxLength); err != nil {
		return err
	}
	q.MaxTokens = min(q.MaxTokens, e.m.MaxLength-len(q.Prompt))
	if need := len(q.Prompt) + q.MaxTokens; need > e.o.Pages*e.o.PageRows {
		return fmt.Errorf("needs %d positions and the cache has %d: ask for fewer tokens or more pages", need,
			e.o.Pages*e.o.PageRows)
	}
	e.waiting = append(e.waiting, &sequence{index: index, req: q, tokens: slices.Clone(q.Prompt)})
	return nil
}

// InFlight is how many requests have no result yet.
func (e *Engine) InFlight() int { return len(e.waiting) + len(e.running) }

// Waiting is how many of them are not in the batch.
func (e *Engine) Waiting() int { return len(e.waiting) }

// Positions is the most tokens that a sequence can have, its prompt included.
func (e *Engine) Positions() int { return min(e.m.MaxLength, e.o.Pages*e.o.PageRows) }

// Each visits what the requests in the batch have so far; visit must not keep it.
func (e *Engine) Each(visit func(index int, so Result)) {
	for _, s := range e.running {
		visit(s.index, s.result)
	}
}

// Done is a result with the index of its request.
type Done struct {
	Index  int
	Result Result
}

// Step runs one forward over the sequences in flight and returns what it finished.
func (e *Engine) Step(ctx context.Context) (done []Done, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, s := range e.step() {
		done = append(done, Done{s.index, s.result})
	}
	e.rest()
	return done, nil
}

// Cancel ends a request, waiting or running, and returns what it has so far; false: none of that index is in flight.
func (e *Engine) Cancel(index int) (Result, bool) {
	is := func(s *sequence) bool { return s.index == index }
	for _, list := range []*[]*sequence{&e.running, &e.waiting} {
		i := slices.IndexFunc(*list, is)
		if i < 0 {
			continue
		}
		s := (*list)[i]
		if list == &e.running {
			e.release(s)
		}
		*list = slices.Delete(*list, i, i+1)
		e.Cancelled++
		e.rest()
		s.result.Finish = FinishCancelled
		return s.result, true
	}
	return Result{}, false
}

// Refresh says that the weights have changed and are now of a version, which later tokens carry. Sequences in flight
// keep their tokens and are read again, so that every token's log-probability is that of one version given all tokens
// before it. No key of the old weights is used again. While nothing is in flight weights may change without it.
func (e *Engine) Refresh(version int) {
	e.version = version
	defer e.pages.forget()
	for len(e.running) > 0 {
		e.yield(e.running[len(e.running)-1])
	}
}

func (e *Engine) abandon() {
	for _, s := range e.running {
		e.release(s)
	}
	e.waiting, e.running = nil, nil
	e.rest()
}

// work is what one step does for a sequence: its next rows.
type work struct {
	s    *sequence
	rows int
}

// step runs one forward and returns the sequences that it finished.
func (e *Engine) step() []*sequence {
	defer e.r.Stack.Release(e.r.Stack.Mark())
	e.Steps++
	works := e.schedule()
	var ready []*sequence // whose next token is wanted
	var last []int32      // their last rows
	row := 0
	for _, w := range works {
		row += w.rows
		if w.s.cached+w.rows == len(w.s.tokens) {
			last = append(last, int32(row-1))
			ready = append(ready, w.s)
		}
	}
	if e.watch != nil {
		e.watch(works, ready)
	}
	var next draw
	enqueue := func() { next = e.enqueue(works, ready, last) }
	if e.observe == nil && row == len(ready) { // every row is decoded: the same operations as in the step before
		kernels.Repeat(e.r.Dev, "decode", enqueue)
	} else {
		enqueue()
	}
	for _, w := range works {
		e.count(w)
		w.s.cached += w.rows
	}
	if len(ready) > 0 {
		e.extend(ready, next)
	}
	return e.retire(ready)
}

func (e *Engine) count(w work) {
	if w.s.cached+1 == len(w.s.tokens) && len(w.s.result.IDs) > 0 {
		e.Decoded++
	} else {
		e.Prefilled += w.rows
	}
}

// draw is what a step chose for each of its ready sequences.
type draw struct {
	logits   kernels.Tensor // [n, V]
	inv      kernels.Tensor // [n]: inverse temperatures
	ids      kernels.Tensor // int32 [n]
	logprobs kernels.Tensor // [n]
}

// enqueue is a step on the device: the forward of all rows, and a token with its log-probability from the last row of
// each ready sequence.
func (e *Engine) enqueue(works []work, ready []*sequence, last []int32) (d draw) {
	r, n := e.r, len(ready)
	ids, layout := e.layout(works)
	x := e.m.Forward(r, model.NewBatch(r, ids, layout, e.cache), nil)
	e.see(works, x)
	if n == 0 {
		return d
	}
	rows := r.Stack.New(x.DType, n, x.Cols)
	r.Dev.Gather(rows, x, parallel.Upload(r, last))
	d.logits = e.m.Head.Logits(r, rows)
	d.ids = r.Stack.New(kernels.I32, 1, n)
	r.Dev.Sample(d.ids, d.logits, samplings(ready))
	d.inv = parallel.Upload(r, inverses(ready))
	d.logprobs = e.logprob(d, d.ids)
	return d
}

func inverses(ready []*sequence) []float32 {
	all := make([]float32, len(ready))
	for i, s := range ready {
		all[i] = kernels.Inverse(s.req.Temperature)
	}
	return all
}

func samplings(ready []*sequence) []kernels.Sampling {
	all := make([]kernels.Sampling, len(ready))
	for i, s := range ready {
		q := s.req
		all[i] = kernels.Sampling{
			Temperature: q.Temperature, TopK: q.TopK, TopP: q.TopP, Seed: q.Seed, Request: q.ID,
			Index: uint64(len(s.result.IDs)),
		}
	}
	return all
}

func (e *Engine) logprob(d draw, ids kernels.Tensor) kernels.Tensor {
	logprob, stats := e.r.Stack.New(kernels.F32, 1, d.logits.Rows), e.r.Stack.New(kernels.F32, d.logits.Rows, 2)
	e.r.Dev.LogProb(logprob, stats, d.logits, ids, d.inv)
	return logprob
}

// see hands the logits of all rows to the observer.
func (e *Engine) see(works []work, x kernels.Tensor) {
	if e.observe == nil {
		return
	}
	row := 0
	for _, w := range works {
		mark := e.r.Stack.Mark()
		logits := parallel.Download[float32](e.r, e.m.Head.Logits(e.r, x.RowRange(row, row+w.rows)))
		for i := range w.rows {
			e.observe(w.s, w.s.cached+i, logits[i*e.m.Vocab:(i+1)*e.m.Vocab])
		}
		e.r.Stack.Release(mark)
		row += w.rows
	}
}

func (e *Engine) layout(works []work) (ids []int32, l *kernels.Layout) {
	l = &kernels.Layout{}
	for _, w := range works {
		l.Spans = append(l.Spans, kernels.Span{Row: len(ids), Rows: w.rows, Pos: w.s.cached, Pages: w.s.pages,
			Slot: w.s.slot})
		ids = append(ids, w.s.tokens[w.s.cached:w.s.cached+w.rows]...)
	}
	l.Packs = []int32{0, int32(len(ids))}
	return ids, l
}

// extend appends to each ready sequence the token that was drawn, or the one that its request forces.
func (e *Engine) extend(ready []*sequence, d draw) {
	next, forced := parallel.Download[int32](e.r, d.ids), false
	for i, s := range ready {
		if done := len(s.result.IDs); done < len(s.req.Forced) {
			next[i], forced = s.req.Forced[done], true
		}
	}
	if forced {
		d.logprobs = e.logprob(d, parallel.Upload(e.r, next))
	}
	logprobs := parallel.Download[float32](e.r, d.logprobs)
	e.addTopLogProbs(ready, d)
	e.Drawn += len(ready)
	for i, s := range ready {
		s.tokens = append(s.tokens, next[i])
		s.result.IDs = append(s.result.IDs, next[i])
		s.result.LogProbs = append(s.result.LogProbs, logprobs[i])
		s.result.Versions = append(s.result.Versions, e.version)
	}
}

// retire ends the sequences that are complete and frees their pages.
func (e *Engine) retire(ready []*sequence) (done []*sequence) {
	for _, s := range ready {
		switch {
		case slices.Contains(s.req.Stop, s.tokens[len(s.tokens)-1]):
			s.result.Finish = FinishStop
		case len(s.result.IDs) == s.req.MaxTokens:
			s.result.Finish = FinishLength
		default:
			continue
		}
		e.release(s)
		e.running = slices.DeleteFunc(e.running, func(o *sequence) bool { return o == s })
		done = append(done, s)
	}
	return done
}
