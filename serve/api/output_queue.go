package api

import (
	"sync"

	"lockstep/serve"
)

// token is a sampled token, or one of an echoed prompt, of which the first has no log-probability.
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
	prompt []serve.PromptToken
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
	q.prompt = res.Prompt // whole before the first token
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

// output is what a sample has brought since the last call of take.
type output struct {
	tokens []token
	prompt []serve.PromptToken // where the request asks for them
	finish serve.FinishReason  // why the sample ended, "" while it runs
	failed error               // why it went wrong
}

// take returns what is new.
func (q *outputQueue) take() output {
	q.mu.Lock()
	defer q.mu.Unlock()
	tokens := q.tokens
	q.tokens = nil
	return output{tokens, q.prompt, q.finish, q.failed}
}
