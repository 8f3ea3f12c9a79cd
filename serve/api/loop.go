package api

import (
	"context"
	"errors"
	"sync"

	"lockstep/serve"
)

// loop runs the engine, and between two of its steps what handlers ask for, until over is closed.
func (s *Server) loop(over <-chan struct{}) {
	for {
		if s.engine.InFlight() == 0 {
			select {
			case f := <-s.asked:
				f()
			case <-over:
				return
			}
			continue
		}
		select {
		case f := <-s.asked:
			f()
			continue
		default:
		}
		s.step()
	}
}

func (s *Server) step() {
	done, err := s.engine.Step(context.Background())
	if err != nil {
		panic(err) // a step fails where its context has ended
	}
	s.engine.Each(func(index int, so serve.Result) { s.feeds[index].put(so) })
	for _, d := range done {
		s.feeds[d.Index].put(d.Result)
		delete(s.feeds, d.Index)
	}
}

// do carries f out between two steps and waits for that.
func (s *Server) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case s.asked <- func() { defer close(done); f() }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start submits what is asked for, all of it or nothing, and returns the samples' feeds.
func (s *Server) start(ctx context.Context, a *ask, ready chan struct{}) (feeds []*feed, err error) {
	closed := s.do(ctx, func() {
		for _, q := range s.requests(a) {
			if !a.seeded {
				q.ID = uint64(s.next)
			}
			if err = s.engine.Submit(s.next, q); err != nil {
				s.drop(feeds)
				return
			}
			f := &feed{index: s.next, ready: ready}
			s.feeds[s.next], feeds = f, append(feeds, f)
			s.next++
		}
	})
	return feeds, errors.Join(closed, err)
}

// cancel ends those of the feeds' requests that are in flight.
func (s *Server) cancel(feeds ...*feed) {
	// The handler that asks has not returned, so the loop still runs.
	if err := s.do(context.Background(), func() { s.drop(feeds) }); err != nil {
		panic(err)
	}
}

func (s *Server) drop(feeds []*feed) {
	for _, f := range feeds {
		s.engine.Cancel(f.index)
		delete(s.feeds, f.index)
	}
}

// feed is what the engine has drawn for a request and its handler has not read. The loop never waits for a handler.
type feed struct {
	index int
	ready chan struct{} // of one place: something is there, for one of the handler's feeds

	mu   sync.Mutex
	seen int // tokens that were put
	new  []token
	end  serve.FinishReason
}

// token is a drawn token.
type token struct {
	id      int32
	logprob float32
	likely  []serve.Likely
}

// put takes over what is new of a result.
func (f *feed) put(so serve.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == len(so.IDs) && so.Finish == "" {
		return
	}
	for ; f.seen < len(so.IDs); f.seen++ {
		t := token{id: so.IDs[f.seen], logprob: so.LogProbs[f.seen]}
		if so.Likely != nil {
			t.likely = so.Likely[f.seen]
		}
		f.new = append(f.new, t)
	}
	f.end = so.Finish
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// take is what was put since the last time, and why the request ended, "" if it goes on.
func (f *feed) take() ([]token, serve.FinishReason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tokens := f.new
	f.new = nil
	return tokens, f.end
}
