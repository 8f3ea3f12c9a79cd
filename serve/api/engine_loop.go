package api

import (
	"context"
	"errors"

	"lockstep/kernels"
	"lockstep/serve"
)

// runEngine steps the engine, and runs the functions that handlers send between two steps, until done is closed.
func (s *Server) runEngine(done <-chan struct{}) {
	for {
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
	case <-ctx.Done():
		return ctx.Err()
	}
}

// submit hands all samples of a request to the engine, or none where one is invalid. It returns a queue for each.
func (s *Server) submit(ctx context.Context, req *samplingRequest, ready chan struct{}) (queues []*outputQueue,
	err error) {
	closed := s.betweenSteps(ctx, func() {
		for _, sample := range s.samples(req) {
			if !req.seeded {
				sample.ID = uint64(s.nextIndex)
			}
			if err = s.engine.Submit(s.nextIndex, sample); err != nil {
				s.remove(queues)
				return
			}
			q := &outputQueue{index: s.nextIndex, ready: ready}
			s.queues[s.nextIndex], queues = q, append(queues, q)
			s.nextIndex++
		}
	})
	return queues, errors.Join(closed, err)
}

// cancel ends the samples of these queues that are still in flight.
func (s *Server) cancel(queues ...*outputQueue) {
	// The engine's loop runs until every handler has returned, so it takes the call.
	if err := s.betweenSteps(context.Background(), func() { s.remove(queues) }); err != nil {
		panic(err)
	}
}

// remove cancels samples. It runs in the engine's goroutine.
func (s *Server) remove(queues []*outputQueue) {
	for _, q := range queues {
		s.engine.Cancel(q.index)
		delete(s.queues, q.index)
	}
}
