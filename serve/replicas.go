package serve

import (
	"context"
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/model"
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

	// alike: the engines have one size, and whoever submits asks for no replica: requests that wait may move.
	alike bool

	// together: every forward takes all ranks, because each has other experts.
	together bool

	// Steps is how many forwards each makes before they wait for one another, if it has requests: few for a short wait
	// until tokens and requests come through, many for speed.
	Steps int
}

// OneReplica is an engine on the rank that calls.
func OneReplica(e *Engine) *Replicas { return &Replicas{engines: []*Engine{e}} }

// mostSteps is Replicas.Steps where no client waits for tokens.
const mostSteps = 32

// NewEngines makes an engine on each rank of a model. Its cache has memory of its own.
func (s Ranks) NewEngines(o Options) (*Replicas, error) {
	engines := make([]*Engine, len(s.Replicas))
	err := s.each(func(r *parallel.Rank, m *model.Model) (err error) {
		engines[r.ID], err = NewEngine(r, m, kernels.NewArena(r.Dev), o)
		return err
	})
	p := s.replicas(engines)
	p.alike = true
	return p, err
}

// replicas are engines of the ranks.
func (s Ranks) replicas(engines []*Engine) *Replicas {
	return &Replicas{world: s.World, engines: engines, together: s.together(), Steps: mostSteps}
}

// First is the engine of the first rank.
func (p *Replicas) First() *Engine { return p.engines[0] }

// Counters are those of all replicas.
func (p *Replicas) Counters() (n Counters) {
	for _, e := range p.engines {
		n.add(e.Counters)
	}
	return n
}

// InFlight is the number of requests without a result.
func (p *Replicas) InFlight() (n int) {
	for _, e := range p.engines {
		n += e.InFlight()
	}
	return n
}

// MaxLength is the most tokens that a sequence can have; see [Engine.MaxLength].
func (p *Replicas) MaxLength() int { return p.First().MaxLength() }

// Waiting is the number of requests in flight that are in no batch.
func (p *Replicas) Waiting() (n int) {
	for _, e := range p.engines {
		n += e.Waiting()
	}
	return n
}

// EachRunning is [Engine.EachRunning] of all replicas.
func (p *Replicas) EachRunning(visit func(index int, res Result)) {
	for _, e := range p.engines {
		e.EachRunning(visit)
	}
}

// Cancel ends a request at the replica that has it; see [Engine.Cancel].
func (p *Replicas) Cancel(index int) (Result, bool) {
	for _, e := range p.engines {
		if res, ok := e.Cancel(index); ok {
			return res, true
		}
	}
	return Result{}, false
}

// Free is how many more requests could be in a batch than are in flight.
func (p *Replicas) Free() (n int) {
	for _, e := range p.engines {
		n += e.options.Slots - e.InFlight()
	}
	return max(n, 0)
}

// Check returns the error of Submit.
func (p *Replicas) Check(q Request) error { return p.First().Check(q) }

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

// Step runs as many forwards as Steps says of all replicas that have requests, and returns the results that these have
// finished. A replica that finishes one goes on: whoever waited for the others then would wait at every answer.
func (p *Replicas) Step(ctx context.Context) (done []Done, err error) {
	if len(p.engines) == 1 {
		return p.engines[0].Step(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.alike {
		p.balance()
	}
	of := make([][]Done, len(p.engines))
	err = p.world.Run(func(r *parallel.Rank) (err error) {
		e := p.engines[r.ID]
		for n := 0; n < p.Steps && err == nil && p.goOn(r); n++ {
			if e.InFlight() == 0 {
				e.m.ServeForward(r) // the others compute together
				continue
			}
			var finished []Done
			finished, err = e.Step(context.WithoutCancel(ctx))
			of[r.ID] = append(of[r.ID], finished...)
		}
		return err
	})
	return slices.Concat(of...), err
}

// balance moves requests from replicas that have more than slots to those that have fewer. Which they are depends on
// numbers of forwards, never on time.
func (p *Replicas) balance() {
	inFlight := func(a, b *Engine) int { return a.InFlight() - b.InFlight() }
	for {
		from, to := slices.MaxFunc(p.engines, inFlight), slices.MinFunc(p.engines, inFlight)
		if from.InFlight() <= from.options.Slots || to.InFlight() >= to.options.Slots {
			return
		}
		last := len(from.waiting) - 1
		to.waiting, from.waiting = append(to.waiting, from.waiting[last]), from.waiting[:last]
	}
}

// goOn tells a rank whether to run another forward: while it has requests, or where all ranks compute together, while
// any has some.
func (p *Replicas) goOn(r *parallel.Rank) bool {
	left := p.engines[r.ID].InFlight()
	if !p.together {
		return left > 0
	}
	of := r.Experts.ShareNumbers([]int32{int32(left)})
	return slices.ContainsFunc(of, func(rank []int32) bool { return rank[0] > 0 })
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
	for i, q := range reqs {
		if err := p.Submit(i, q); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
	}
	return p.finish(ctx, len(reqs))
}

// finish runs n requests, all that are in flight, to their ends, and returns the results by index. A request that fails
// ends the others.
func (p *Replicas) finish(ctx context.Context, n int) ([]Result, error) {
	results := make([]Result, n)
	for left := n; left > 0; {
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
