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

// Options size the engine. They change no bit of a result.
type Options struct {
	Slots         int  // most sequences in the batch
	PageRows      int  // token positions of a cache page
	Pages         int  // 0: enough for Slots sequences of MaxLength, at most 1 GiB
	MaxLength     int  // most positions of a sequence; 0: the model's
	PrefillRows   int  // most prefill tokens of a step
	NoPrefixCache bool // sequences with a common prefix share no pages
}

// Counters count what an engine has done.
type Counters struct {
	Steps     int
	Prefilled int // rows computed of prompts and of preempted sequences
	Reused    int // rows of these that the prefix cache had
	Decoded   int // rows of tokens that the step before generated
	Generated int // tokens, forced ones included
	Preempted int // times that a sequence gave its pages to older ones
	Cancelled int
}

func (c *Counters) add(o Counters) {
	c.Steps += o.Steps
	c.Prefilled += o.Prefilled
	c.Reused += o.Reused
	c.Decoded += o.Decoded
	c.Generated += o.Generated
	c.Preempted += o.Preempted
	c.Cancelled += o.Cancelled
}

const defaultCacheBytes = 1 << 30

// Engine runs requests through one model on one rank. Each step is one forward over a chunk of prompts and one row of
// every sequence that decodes.
type Engine struct {
	r             *parallel.Rank
	m             *model.Model
	options       Options
	cache         *model.Cache
	pages         *pagePool
	prefixCaching bool // off for recurrent models: the state at a page's end is not kept
	fillsUp       bool // see decode
	freeSlots     []int
	waiting       []*sequence // in order of arrival, preempted ones first
	running       []*sequence // in order of admission
	version       int         // of the weights
	kept          []Kept      // of requests that keep logits
	// onLogits, if set, receives the logits of every row computed, for Verify, those that fill a batch up included.
	onLogits func(s *sequence, position int, logits []float32)
	// onStep, if set, receives the rows of a step before it runs, and the sequences that it samples for.
	onStep func(batch []scheduled, ready []*sequence)
	Counters
}

type sequence struct {
	index  int // of its request
	req    Request
	tokens []int32 // prompt and generated tokens
	cached int     // positions in the cache
	result Result
	// While it is in the batch:
	pages      []int32
	registered int    // pages in the prefix cache
	prefixID   uint64 // of the last registered page
	slot       int
	// counts are how often each id was generated, of the first counted ones; with a repetition penalty ids of the
	// prompt are there too. Nil: nothing needs them.
	counts  map[int32]int
	counted int
}

// The most that options may ask for, far above what a machine has.
const (
	mostSlots      = 1 << 16
	mostRows       = 1 << 24 // of a page, and of prefill
	mostPages      = 1 << 24
	mostCacheBytes = 1 << 50
)

func (o Options) validate() error {
	for _, n := range []struct {
		name             string
		value, low, high int
	}{
		{"slots", o.Slots, 1, mostSlots}, {"page_rows", o.PageRows, 1, mostRows},
		{"prefill_rows", o.PrefillRows, 1, mostRows}, {"pages", o.Pages, 0, mostPages},
	} {
		if n.value < n.low || n.value > n.high {
			return fmt.Errorf("rollout: %s is %d, want %d to %d", n.name, n.value, n.low, n.high)
		}
	}
	return nil
}

// NewEngine makes an engine and allocates its cache from mem.
func NewEngine(r *parallel.Rank, m *model.Model, mem *kernels.Arena, o Options) (*Engine, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	page, slot := m.CacheBytes(o.PageRows)
	if o.Pages == 0 {
		o.Pages = max(o.perSequence(m), min(o.enough(m), (defaultCacheBytes-o.Slots*slot)/max(page, 1)))
	}
	if bytes := float64(o.Pages)*float64(page) + float64(o.Slots)*float64(slot); bytes > mostCacheBytes {
		return nil, fmt.Errorf("rollout: the cache would take %.0f bytes, lower pages, page_rows or slots", bytes)
	}
	size := model.CacheSize{Pages: o.Pages, PageRows: o.PageRows, Slots: o.Slots}
	mem.Reserve(meta.Bytes(r.Dev, func(_ kernels.Device, mem *kernels.Arena) { m.NewCache(mem, size) }))
	e := &Engine{r: r, m: m, options: o, cache: m.NewCache(mem, size)}
	e.pages, e.prefixCaching = newPagePool(o.Pages, o.PageRows), !o.NoPrefixCache && slot == 0
	e.fillsUp = fillsUp(r.Dev, slot)
	for slot := range o.Slots {
		e.freeSlots = append(e.freeSlots, o.Slots-1-slot)
	}
	return e, nil
}

// Run is [Replicas.Run] of this engine alone.
func (e *Engine) Run(ctx context.Context, reqs []Request) ([]Result, error) {
	return OneReplica(e).Run(ctx, reqs)
}

// Check returns the error of Submit.
func (e *Engine) Check(q Request) error {
	if err := q.validate(e.m.Vocab, e.m.MaxLength); err != nil {
		return err
	}
	need, room := min(len(q.Prompt)+q.MaxTokens, e.m.MaxLength), e.options.Pages*e.options.PageRows
	if need > room {
		return fmt.Errorf("needs %d positions and the cache has %d: lower max tokens or raise the number of pages",
			need, room)
	}
	return nil
}

// Submit queues a request. index identifies its result.
func (e *Engine) Submit(index int, q Request) error {
	if err := e.Check(q); err != nil {
		return err
	}
	q.MaxTokens = min(q.MaxTokens, e.m.MaxLength-len(q.Prompt))
	e.waiting = append(e.waiting, &sequence{index: index, req: q, tokens: slices.Clone(q.Prompt)})
	return nil
}

// InFlight is the number of requests without a result.
func (e *Engine) InFlight() int { return len(e.waiting) + len(e.running) }

// Waiting is the number of requests in flight that are not in the batch.
func (e *Engine) Waiting() int { return len(e.waiting) }

// MaxLength is the most tokens that a sequence can have, prompt included.
func (e *Engine) MaxLength() int { return min(e.m.MaxLength, e.options.Pages*e.options.PageRows) }

// EachRunning visits the results so far of the requests in the batch. visit must not keep them.
func (e *Engine) EachRunning(visit func(index int, res Result)) {
	for _, s := range e.running {
		visit(s.index, s.result)
	}
}

// Done is a result with the index of its request.
type Done struct {
	Index  int
	Result Result
}

// Step runs one forward and returns the results that it finished.
func (e *Engine) Step(ctx context.Context) (done []Done, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, s := range e.step() {
		done = append(done, Done{s.index, s.result})
	}
	e.resetWhenIdle()
	return done, nil
}

// Cancel ends a request, waiting or running, and returns its result so far. It reports false if no request of that
// index is in flight.
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
		e.resetWhenIdle()
		s.result.Finish = FinishCancelled
		return s.result, true
	}
	return Result{}, false
}

// Refresh must be called after the weights have changed while requests are in flight. Later tokens record this version.
// Running sequences are preempted and keep their tokens; they are prefilled again with the new weights. So every
// token's log-probability is that of one version given all tokens before it. The prefix cache is cleared.
func (e *Engine) Refresh(version int) {
	e.version = version
	defer e.pages.reset()
	for len(e.running) > 0 {
		e.preempt(e.running[len(e.running)-1])
	}
	for _, s := range e.waiting {
		if len(s.result.Prompt) < len(s.req.Prompt)-1 {
			s.result.Prompt = nil // all of one version
		}
	}
}

func (e *Engine) dropAll() {
	for _, s := range e.running {
		e.release(s)
	}
	e.waiting, e.running = nil, nil
	e.resetWhenIdle()
}

// scheduled is a sequence with the number of its rows in a step.
type scheduled struct {
	seq  *sequence
	rows int
}

// step runs one forward and returns the sequences that it finished.
func (e *Engine) step() []*sequence {
	defer e.r.Stack.Release(e.r.Stack.Mark())
	e.Steps++
	batch := e.schedule()
	var ready []*sequence // sequences whose next token is sampled
	var last []int32      // their last rows in the batch
	row := 0
	for _, w := range batch {
		row += w.rows
		if w.seq.cached+w.rows == len(w.seq.tokens) {
			last = append(last, int32(row-1))
			ready = append(ready, w.seq)
		}
	}
	if e.onStep != nil {
		e.onStep(batch, ready)
	}
	var next sampled
	if 0 < row && row == len(ready) && !adjusted(ready) {
		next = e.decode(batch)
	} else {
		next = e.enqueue(batch, ready, last)
	}
	failed := e.addPromptLogProbs(batch, next.x)
	for _, w := range batch {
		e.countRows(w)
		w.seq.cached += w.rows
	}
	if len(ready) > 0 {
		e.appendTokens(ready, next)
	}
	for _, s := range failed {
		if !slices.Contains(ready, s) {
			ready = append(ready, s)
		}
	}
	return e.finishSequences(ready)
}

func (e *Engine) countRows(w scheduled) {
	if w.seq.cached+1 == len(w.seq.tokens) && len(w.seq.result.IDs) > 0 {
		e.Decoded++
	} else {
		e.Prefilled += w.rows
	}
}

// sampled is what a step samples for its n ready sequences, and those that fill a decoding step up.
type sampled struct {
	x        kernels.Tensor // of all rows, before the head
	logits   kernels.Tensor // [n, V]
	inv      kernels.Tensor // [n], inverse temperatures
	ids      kernels.Tensor // int32 [n]
	logprobs kernels.Tensor // [n]
	stats    kernels.Tensor // [n, 2], of LogProb
}

// enqueue launches a step on the device: the forward of all rows, and the sampling of a token from the last row of each
// ready sequence.
func (e *Engine) enqueue(batch []scheduled, ready []*sequence, last []int32) (d sampled) {
	r, n := e.r, len(ready)
	ids, layout := e.layout(batch)
	x := e.m.Forward(r, model.NewBatch(r, ids, layout, e.cache), nil)
	e.reportLogits(batch, x)
	d.x = x
	if n == 0 {
		return d
	}
	rows := r.Stack.New(x.DType, n, x.Cols)
	r.Dev.Gather(rows, x, parallel.Upload(r, last))
	d.logits = e.m.Head.Logits(r, rows)
	d.ids = r.Stack.New(kernels.I32, 1, n)
	r.Dev.Sample(d.ids, e.adjust(d.logits, ready), samplings(ready))
	d.inv = parallel.Upload(r, inverses(ready))
	d.logprobs, d.stats = e.logProbs(d.logits, d.ids, d.inv)
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

// logProbs are the log-probabilities of ids [n] by logits [n, V], and the stats of LogProb [n, 2].
func (e *Engine) logProbs(logits, ids, inv kernels.Tensor) (logprob, stats kernels.Tensor) {
	logprob, stats = e.r.Stack.New(kernels.F32, 1, logits.Rows), e.r.Stack.New(kernels.F32, logits.Rows, 2)
	e.r.Dev.LogProb(logprob, stats, logits, ids, inv)
	return logprob, stats
}

// reportLogits passes the logits of all rows to onLogits.
func (e *Engine) reportLogits(batch []scheduled, x kernels.Tensor) {
	if e.onLogits == nil {
		return
	}
	row := 0
	for _, w := range batch {
		mark := e.r.Stack.Mark()
		logits := parallel.Download[float32](e.r, e.m.Head.Logits(e.r, x.RowRange(row, row+w.rows)))
		for i := range w.rows {
			e.onLogits(w.seq, w.seq.cached+i, logits[i*e.m.Vocab:(i+1)*e.m.Vocab])
		}
		e.r.Stack.Release(mark)
		row += w.rows
	}
}

func (e *Engine) layout(batch []scheduled) (ids []int32, l *kernels.Layout) {
	l = &kernels.Layout{Spans: make([]kernels.Span, 0, len(batch))}
	for _, w := range batch {
		l.Spans = append(l.Spans, kernels.Span{Row: len(ids), Rows: w.rows, Pos: w.seq.cached, Pages: w.seq.pages,
			Slot: w.seq.slot})
		ids = append(ids, w.seq.tokens[w.seq.cached:w.seq.cached+w.rows]...)
	}
	l.Segments = []int32{0, int32(len(ids))}
	return ids, l
}

// appendTokens appends to each ready sequence its sampled token, or the one that its request forces. A sequence whose
// logits are no numbers fails alone.
func (e *Engine) appendTokens(ready []*sequence, d sampled) {
	next, forced := parallel.Download[int32](e.r, d.ids), false
	for i, s := range ready {
		if next[i] < 0 {
			s.result.Err = fmt.Errorf("token %d: %w", len(s.result.IDs), ErrNotFinite)
			continue
		}
		if done := len(s.result.IDs); done < len(s.req.Forced) {
			next[i], forced = s.req.Forced[done], true
		}
	}
	if forced {
		d.logprobs, _ = e.logProbs(d.logits, parallel.Upload(e.r, next), d.inv)
	}
	logprobs := parallel.Download[float32](e.r, d.logprobs)
	e.addTopLogProbs(ready, d)
	e.keep(ready, d.logits)
	for i, s := range ready {
		if !s.wantsToken() {
			continue
		}
		e.Generated++
		s.tokens = append(s.tokens, next[i])
		s.result.IDs = append(s.result.IDs, next[i])
		s.result.LogProbs = append(s.result.LogProbs, logprobs[i])
		s.result.Versions = append(s.result.Versions, e.version)
	}
}

// wantsToken tells whether a ready sequence takes the token that was sampled for it: it has not failed, and is not to
// end with its prompt.
func (s *sequence) wantsToken() bool {
	return s.result.Err == nil && len(s.result.IDs) < s.req.MaxTokens
}

// finishSequences ends the sequences that are complete and frees their pages.
func (e *Engine) finishSequences(ready []*sequence) (done []*sequence) {
	for _, s := range ready {
		switch {
		case s.result.Err != nil:
			s.result.Finish = FinishFailed
		case len(s.result.IDs) > 0 && slices.Contains(s.req.Stop, s.tokens[len(s.tokens)-1]):
			s.result.Finish = FinishStop
		case len(s.result.IDs) == s.req.MaxTokens:
			s.result.Finish = FinishLength
		default:
			continue
		}
		e.release(s)
		done = append(done, s)
	}
	if len(done) > 0 {
		e.running = slices.DeleteFunc(e.running, func(s *sequence) bool { return s.result.Finish != "" })
	}
	return done
}
