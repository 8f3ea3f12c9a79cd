package cpu

import (
	"sync"
	"sync/atomic"
)

// pool runs loops on a fixed number of threads. Threads share independent outputs, never parts of a sum, so the
// number of threads cannot change a bit.
type pool struct {
	threads int
	work    chan *loop
}

type loop struct {
	n, grain int
	body     func(worker, from, to int)
	next     atomic.Int64
	workers  atomic.Int64
	running  atomic.Int64 // helpers that have not finished
	done     sync.WaitGroup
}

// spins is how often a thread polls for work, or for the end of a loop, before it sleeps: about 100 microseconds, as
// long as waking takes in a virtual machine. Without it a step of a small model loses a third of its time between
// operations.
const spins = 1000

func newPool(threads int) *pool {
	p := &pool{threads: threads, work: make(chan *loop, threads)}
	for range threads - 1 {
		go func() {
			for l := p.next(); l != nil; l = p.next() {
				l.run()
				l.running.Add(-1)
				l.done.Done()
			}
		}()
	}
	return p
}

func (p *pool) close() { close(p.work) }

// next waits for a loop; nil when the pool is closed.
func (p *pool) next() *loop {
	for range spins {
		select {
		case l := <-p.work:
			return l
		default:
			relax()
		}
	}
	return <-p.work
}

// each calls body for [0, n) in ranges of at most grain, on all threads; worker is below threads and belongs to one
// call at a time, so it may index scratch memory. A panic in body on another thread is a bug and ends the program.
func (p *pool) each(n, grain int, body func(worker, from, to int)) {
	grain = max(grain, 1)
	if n <= grain || p.threads == 1 {
		if n > 0 {
			body(0, 0, n)
		}
		return
	}
	l := &loop{n: n, grain: grain, body: body}
	helpers := min(p.threads, (n+grain-1)/grain) - 1
	l.done.Add(helpers)
	l.running.Store(int64(helpers))
	for range helpers {
		p.work <- l
	}
	l.run()
	for range spins {
		if l.running.Load() == 0 {
			return
		}
		relax()
	}
	l.done.Wait()
}

func (l *loop) run() {
	worker := int(l.workers.Add(1)) - 1
	for {
		from := int(l.next.Add(int64(l.grain))) - l.grain
		if from >= l.n {
			return
		}
		l.body(worker, from, min(from+l.grain, l.n))
	}
}
