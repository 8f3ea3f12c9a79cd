package serve

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Measurement times a run of requests.
type Measurement struct {
	Counters                     // of the run
	Seconds           float64    // of the run
	TimeToFirstToken  []float64  // seconds from the start of the run to the first token of each request, ascending
	InterTokenLatency []float64  // seconds from each token to the next one of its request, ascending
	StepLoads         []StepLoad // of each step
	Pages             int        // of the cache
}

// StepLoad is the work of one step.
type StepLoad struct {
	Seconds   float64 // a step that samples nothing is not waited for; its time counts in the next step
	Rows      int
	Generated int   // tokens
	Lengths   []int // of its sequences in positions, including this step's
	Shared    int   // positions counted more than once in Lengths because their pages are shared
	Pages     int   // in use
}

// Measure runs requests and times each step. Nothing else may be in flight.
func (e *Engine) Measure(ctx context.Context, reqs []Request) (m Measurement, err error) {
	if e.InFlight() > 0 {
		panic("serve: Measure while other requests are in flight")
	}
	for i, q := range reqs {
		if err := e.Submit(i, q); err != nil {
			e.dropAll()
			return m, fmt.Errorf("request %d: %w", i, err)
		}
	}
	m.Pages = e.options.Pages
	before, began, last := e.Counters, time.Now(), make([]time.Time, len(reqs))
	var ready []*sequence
	e.onStep = func(batch []scheduled, sampling []*sequence) {
		ready = sampling
		m.StepLoads = append(m.StepLoads, e.load(batch, len(sampling)))
	}
	defer func() { e.onStep = nil }()
	for e.InFlight() > 0 {
		start := time.Now()
		if _, err := e.Step(ctx); err != nil {
			e.dropAll()
			return m, err
		}
		now := time.Now()
		m.StepLoads[len(m.StepLoads)-1].Seconds = now.Sub(start).Seconds()
		for _, s := range ready {
			if last[s.index].IsZero() {
				m.TimeToFirstToken = append(m.TimeToFirstToken, now.Sub(began).Seconds())
			} else {
				m.InterTokenLatency = append(m.InterTokenLatency, now.Sub(last[s.index]).Seconds())
			}
			last[s.index] = now
		}
	}
	m.Seconds, m.Counters = time.Since(began).Seconds(), e.since(before)
	slices.Sort(m.TimeToFirstToken)
	slices.Sort(m.InterTokenLatency)
	return m, e.r.Dev.Sync()
}

func (e *Engine) load(batch []scheduled, generated int) StepLoad {
	l := StepLoad{Generated: generated, Shared: e.pages.shared * e.options.PageRows, Pages: e.options.Pages -
		e.pages.free}
	for _, w := range batch {
		l.Rows += w.rows
		l.Lengths = append(l.Lengths, w.seq.cached+w.rows)
	}
	return l
}

// since returns the counters less c.
func (e *Engine) since(c Counters) Counters {
	return Counters{
		Steps: e.Steps - c.Steps, Prefilled: e.Prefilled - c.Prefilled, Reused: e.Reused - c.Reused,
		Decoded: e.Decoded - c.Decoded, Generated: e.Generated - c.Generated,
		Preempted: e.Preempted - c.Preempted, Cancelled: e.Cancelled - c.Cancelled,
	}
}
