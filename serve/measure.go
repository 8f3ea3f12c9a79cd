package serve

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Measured is a run of requests with the clock in hand.
type Measured struct {
	Counters           // of the run
	Seconds  float64   // likewise
	First    []float64 // seconds from the start of the run to the first token of each request, ascending
	Between  []float64 // seconds from each token to the next one of its request, ascending
	Loads    []Load    // of each step
	Pages    int       // of the cache
}

// Load is what one step had to do.
type Load struct {
	Seconds float64 // a step that draws no token is not waited for, its end falls into the next
	Rows    int
	Drawn   int   // tokens
	Lengths []int // positions of each of its sequences, the rows of the step included
	Shared  int   // of them, those counted again because their pages are shared
	Pages   int   // held
}

// Measure is Run, timed step by step; nothing else may be in flight.
func (e *Engine) Measure(ctx context.Context, reqs []Request) (m Measured, err error) {
	if e.InFlight() > 0 {
		panic("serve: Measure among other sequences")
	}
	for i, q := range reqs {
		if err := e.Submit(i, q); err != nil {
			e.abandon()
			return m, fmt.Errorf("request %d: %w", i, err)
		}
	}
	m.Pages = e.o.Pages
	before, began, last := e.Counters, time.Now(), make([]time.Time, len(reqs))
	var ready []*sequence
	e.watch = func(works []work, drawing []*sequence) {
		ready = drawing
		m.Loads = append(m.Loads, e.load(works, len(drawing)))
	}
	defer func() { e.watch = nil }()
	for e.InFlight() > 0 {
		start := time.Now()
		if _, err := e.Step(ctx); err != nil {
			e.abandon()
			return m, err
		}
		now := time.Now()
		m.Loads[len(m.Loads)-1].Seconds = now.Sub(start).Seconds()
		for _, s := range ready {
			if last[s.index].IsZero() {
				m.First = append(m.First, now.Sub(began).Seconds())
			} else {
				m.Between = append(m.Between, now.Sub(last[s.index]).Seconds())
			}
			last[s.index] = now
		}
	}
	m.Seconds, m.Counters = time.Since(began).Seconds(), e.since(before)
	slices.Sort(m.First)
	slices.Sort(m.Between)
	return m, e.r.Dev.Sync()
}

func (e *Engine) load(works []work, drawn int) Load {
	l := Load{Drawn: drawn, Shared: e.pages.shared * e.o.PageRows, Pages: e.o.Pages - e.pages.free}
	for _, w := range works {
		l.Rows += w.rows
		l.Lengths = append(l.Lengths, w.s.cached+w.rows)
	}
	return l
}

// since is what was counted since the counters were c.
func (e *Engine) since(c Counters) Counters {
	return Counters{
		Steps: e.Steps - c.Steps, Prefilled: e.Prefilled - c.Prefilled, Reused: e.Reused - c.Reused,
		Decoded: e.Decoded - c.Decoded, Drawn: e.Drawn - c.Drawn,
		Preempted: e.Preempted - c.Preempted, Cancelled: e.Cancelled - c.Cancelled,
	}
}
