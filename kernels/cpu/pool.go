package cpu

import (
	"sync"
	"sync/atomic"
)

// pool runs loops on a fixed number of threads. Only independent outputs are handed out, never parts of a sum, so the
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
	done     sync.WaitGroup
}

func newPool(threads int) *pool {
	p := &pool{threads: threads, work: make(chan *loop, threads)}
	for range threads - 1 {
		go func() {
			for l := range p.work {
				l.run()
			}
		}()
	}
	return p
}

func (p *pool) close() { close(p.work) }

// each calls body for [0, n) in ranges of at most grain, on all threads; worker is below threads and belongs to one call at a
// time, so it may index scratch memory. A panic in body on another thread ends the program, as it must: it is a bug.
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
	for range helpers {
		p.work <- l
	}
	l.turn()
	l.done.Wait()
}

func (l *loop) run() {
	l.turn()
	l.done.Done()
}

func (l *loop) turn() {
	worker := int(l.workers.Add(1)) - 1
	for {
		from := int(l.next.Add(int64(l.grain))) - l.grain
		if from >= l.n {
			return
		}
		l.body(worker, from, min(from+l.grain, l.n))
	}
}
