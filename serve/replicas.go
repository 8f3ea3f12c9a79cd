package serve

import (
	"context"
	"fmt"
	"slices"

	"lockstep/parallel"
)

// Replicas are engines of one model on the ranks of a world, each with a batch, pages and a schedule of its own (data
// parallel, as vLLM has it). No result depends on the replica that computes it. The goroutine of the first rank calls
// the methods.
type Replicas struct {
	world   *parallel.World // nil: one engine, on the rank that calls
	engines []*Engine       // by rank
	last    int             // the replica of the last request
	prompt  []int32         // of the last request
}

// NewReplicas makes an engine on each rank of a world by a function that runs in the rank.
func NewReplicas(w *parallel.World, engine func(r *parallel.Rank) (*Engine, error)) (*Replicas, error) {
	p := &Replicas{world: w, engines: make([]*Engine, w.Size())}
	return p, w.Run(func(r *parallel.Rank) (err error) {
		p.engines[r.ID], err = engine(r)
		return err
	})
}

// OneReplica is an engine on the rank that calls.
func OneReplica(e *Engine) *Replicas { return &Replicas{engines: []*Engine{e}} }

// First is the engine of the first rank.
func (p *Replicas) First() *Engine { return p.engines[0] }

// Generated is the number of tokens that the replicas have generated, forced ones included.
func (p *Replicas) Generated() (n int) {
	for _, e := range p.engines {
		n += e.Generated
	}
	return n
}

// Submit queues a request at a replica; see [Engine.Submit].
func (p *Replicas) Submit(index int, q Request) error {
	p.last = p.choose(q.Prompt)
	p.prompt = q.Prompt
	return p.engines[p.last].Submit(index, q)
}

// prefixAhead is how many requests more than another a replica may have for the sake of a prompt that it has read.
const prefixAhead = 4

// choose returns the replica with fewest requests in flight, the lowest of several; or that of the last request, where
// the prompt is the same and the replica is not far ahead. It depends on numbers, never on time.
func (p *Replicas) choose(prompt []int32) int {
	least := 0
	for i, e := range p.engines {
		if e.InFlight() < p.engines[least].InFlight() {
			least = i
		}
	}
	ahead := p.engines[p.last].InFlight() - p.engines[least].InFlight()
	if ahead < prefixAhead && slices.Equal(prompt, p.prompt) {
		return p.last
	}
	return least
}

// stepsTogether is how many forwards the replicas make at most before they wait for one another.
const stepsTogether = 32

// Step runs forwards of all replicas that have requests, until each has finished some or has made a number of them, and
// returns the results.
func (p *Replicas) Step(ctx context.Context) (done []Done, err error) {
	if len(p.engines) == 1 {
		return p.engines[0].Step(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	of := make([][]Done, len(p.engines))
	err = p.world.Run(func(r *parallel.Rank) (err error) {
		e := p.engines[r.ID]
		for n := 0; n < stepsTogether && e.InFlight() > 0 && len(of[r.ID]) == 0 && err == nil; n++ {
			of[r.ID], err = e.Step(context.WithoutCancel(ctx))
		}
		return err
	})
	return slices.Concat(of...), err
}

// Run generates every request and returns the results in the order of requests. Requests that were submitted before
// keep waiting; none may be running (see Refresh). A request that fails ends the others.
func (p *Replicas) Run(ctx context.Context, reqs []Request) ([]Result, error) {
	for _, e := range p.engines {
		if len(e.running) > 0 {
			panic("serve: Run while sequences are running")
		}
		defer func(waiting []*sequence) { e.waiting = waiting }(e.waiting)
		e.waiting = nil
	}
	results, left := make([]Result, len(reqs)), len(reqs)
	for i, q := range reqs {
		if err := p.Submit(i, q); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
	}
	for left > 0 {
		done, err := p.Step(ctx)
		for _, d := range done {
			if d.Result.Err != nil && err == nil {
				err = fmt.Errorf("request %d: %w", d.Index, d.Result.Err)
			}
		}
		if err != nil {
			for _, e := range p.engines {
				e.dropAll()
			}
			return nil, err
		}
		for _, d := range done {
			results[d.Index] = d.Result
		}
		left -= len(done)
	}
	return results, p.First().r.Dev.Sync()
}

// Refresh is [Engine.Refresh] of all replicas.
func (p *Replicas) Refresh(version int) {
	for _, e := range p.engines {
		e.Refresh(version)
	}
	p.prompt = nil
}

// Pending lists the requests in flight; see [Engine.Pending].
func (p *Replicas) Pending() (list []Pending) {
	for _, e := range p.engines {
		list = append(list, e.Pending()...)
	}
	return list
}

// Resume queues pending requests, in their order, at the first replica.
func (p *Replicas) Resume(list []Pending) { p.First().Resume(list) }
