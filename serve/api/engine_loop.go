package api

import (
	"cmp"
	"context"
	"slices"

	"lockstep/kernels"
	"lockstep/serve"
)

// runEngine steps the engine, and runs the functions that handlers send between two steps, until done is closed.
func (s *Server) runEngine(done <-chan struct{}) {
	defer close(s.ended)
	for {
		s.admitSamples()
		if s.engine.InFlight() == 0 {
			select {
			case f := <-s.calls:
				f()
			case <-done:
				return
			}
			continue
		}
		select {
		case f := <-s.calls:
			f()
			continue
		case <-done: // what is still in flight has been cut
			return
		default:
		}
		s.step()
	}
}

// step runs one step of the engine and moves what it generated into the output queues.
func (s *Server) step() {
	done, err := s.engine.Step(context.Background())
	if err != nil {
		panic(kernels.Fault{Err: err}) // of a rank
	}
	s.engine.EachRunning(func(index int, res serve.Result) { s.queues[index].update(res) })
	for _, d := range done {
		s.queues[d.Index].update(d.Result)
		delete(s.queues, d.Index)
	}
}

// betweenSteps runs f in the engine's goroutine between two steps and waits for it.
func (s *Server) betweenSteps(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case s.calls <- func() { defer close(done); f() }:
		<-done
		return nil
	case <-s.ended:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// admission is the samples of one request that the engine does not have yet. The engine gets them when it has room,
// one of each request after the other: a request for many does not hold up those for few.
type admission struct {
	queues  []*outputQueue
	samples []serve.Request
}

// admitSamples gives the engine as many samples as it has room for.
func (s *Server) admitSamples() {
	for n := s.engine.Free(); n > 0 && len(s.waiting) > 0; n-- {
		a := s.waiting[0]
		s.waiting = s.waiting[1:]
		if err := s.engine.Submit(a.queues[0].index, a.samples[0]); err != nil {
			panic(err) // it was checked when it came
		}
		if a.queues, a.samples = a.queues[1:], a.samples[1:]; len(a.queues) > 0 {
			s.waiting = append(s.waiting, a)
		}
	}
}

// waitingSamples counts those that the engine does not have yet.
func (s *Server) waitingSamples() (n int) {
	for _, a := range s.waiting {
		n += len(a.queues)
	}
	return n
}

// submit queues all samples of a request, or none where one is invalid or too many wait. It returns a queue for each.
func (s *Server) submit(ctx context.Context, req *samplingRequest, ready chan struct{}) (queues []*outputQueue,
	err error) {
	closed := s.betweenSteps(ctx, func() {
		a := &admission{samples: s.samples(req)}
		for _, q := range a.samples {
			if invalid := s.engine.Check(q); invalid != nil {
				err = badRequest("", "%v", invalid)
				return
			}
		}
		if n := s.waitingSamples(); n+len(a.samples) > s.options.Limits.Waiting {
			err = tooManyRequests("%d samples wait, and at most %d may", n, s.options.Limits.Waiting)
			return
		}
		for i := range a.samples {
			if !req.seeded {
				a.samples[i].ID = uint64(s.nextIndex)
			}
			q := &outputQueue{index: s.nextIndex, ready: ready}
			s.queues[s.nextIndex], a.queues = q, append(a.queues, q)
			s.nextIndex++
		}
		queues, s.waiting = a.queues, append(s.waiting, a)
	})
	if closed != nil {
		return nil, cmp.Or(ended(ctx), closed)
	}
	return queues, err
}

// cancel ends the samples of these queues that are still in flight. Where the engine has ended there are none.
func (s *Server) cancel(queues ...*outputQueue) {
	if err := s.betweenSteps(context.Background(), func() { s.remove(queues) }); err != nil && err != errStopping {
		panic(err)
	}
}

// remove cancels samples. It runs in the engine's goroutine.
func (s *Server) remove(queues []*outputQueue) {
	for _, q := range queues {
		if _, running := s.engine.Cancel(q.index); !running {
			s.dropWaiting(q)
		}
		delete(s.queues, q.index)
	}
}

// dropWaiting removes a sample that the engine does not have yet, if it is one.
func (s *Server) dropWaiting(q *outputQueue) {
	for i, a := range s.waiting {
		k := slices.Index(a.queues, q)
		if k < 0 {
			continue
		}
		s.dropped++
		// the handler has the queues too
		a.queues, a.samples = slices.Delete(slices.Clone(a.queues), k, k+1), slices.Delete(a.samples, k, k+1)
		if len(a.queues) == 0 {
			s.waiting = slices.Delete(s.waiting, i, i+1)
		}
		return
	}
}
