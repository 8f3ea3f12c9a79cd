package api

import (
	"sync"

	"lockstep/serve"
)

// token is a sampled token.
type token struct {
	id      int32
	logprob float32              // in nats
	top     []serve.TokenLogProb // the most likely tokens at its position, where the request asks for them
}

// outputQueue holds the tokens of one sample that the engine has generated and the handler has not taken. The engine
// never waits for a handler.
type outputQueue struct {
	index int           // of the sample in the engine
	ready chan struct{} // capacity 1, shared by the queues of a handler: one of them has something new

	mu     sync.Mutex
	put    int // tokens seen so far
	tokens []token
	finish serve.FinishReason
	failed error // of serve.FinishFailed
}

// update adds the tokens of a result that are new.
func (q *outputQueue) update(res serve.Result) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.put == len(res.IDs) && res.Finish == "" {
		return
	}
	for ; q.put < len(res.IDs); q.put++ {
		t := token{id: res.IDs[q.put], logprob: res.LogProbs[q.put]}
		if res.TopLogProbs != nil {
			t.top = res.TopLogProbs[q.put]
		}
		q.tokens = append(q.tokens, t)
	}
	q.finish, q.failed = res.Finish, res.Err
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns the tokens since the last call and why the sample ended, "" while it runs; failed is not nil where it
// went wrong.
func (q *outputQueue) take() (tokens []token, finish serve.FinishReason, failed error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	tokens, q.tokens = q.tokens, nil
	return tokens, q.finish, q.failed
}
