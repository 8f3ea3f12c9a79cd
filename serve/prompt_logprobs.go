package serve

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/parallel"
)

// PromptToken is a token of a prompt with its log-probability given those before it, at temperature 1 whatever the
// request's: the bits that [Score] gives.
type PromptToken struct {
	TokenLogProb
	Rank int            // 1: the most likely; one more than the number of likelier tokens
	Top  []TokenLogProb // the most likely tokens at its position, as many as the request asks for
}

// addPromptLogProbs appends to the sequences of a step that ask for them the log-probabilities of prompt tokens that
// follow its rows; x [rows, H] is before the head. It returns the sequences whose logits are no numbers.
func (e *Engine) addPromptLogProbs(batch []scheduled, x kernels.Tensor) (failed []*sequence) {
	first, most := 0, e.m.Head.ChunkRows(e.r)
	for _, w := range batch {
		s := w.seq
		for s.result.Err == nil {
			at := len(s.result.Prompt) // its row is never in a page that another sequence has filled: see admit
			to := min(s.cached+w.rows, len(s.req.Prompt)-1, at+most)
			if !s.req.PromptLogProbs || at >= to {
				break
			}
			rows := x.RowRange(first+at-s.cached, first+to-s.cached)
			if s.result.Err = e.promptLogProbs(s, rows, s.req.Prompt[at+1:to+1]); s.result.Err != nil {
				failed = append(failed, s)
			}
		}
		first += w.rows
	}
	return failed
}

// promptLogProbs appends those of ids, which follow the rows x.
func (e *Engine) promptLogProbs(s *sequence, x kernels.Tensor, ids []int32) error {
	r := e.r
	defer r.Stack.Release(r.Stack.Mark())
	on := e.m.Head.Logits(r, x)
	p, stats := e.logProbs(on, parallel.Upload(r, ids), kernels.Tensor{})
	logits := parallel.Download[float32](r, on)
	logprobs, m := parallel.Download[float32](r, p), parallel.Download[float32](r, stats)
	for i, id := range ids {
		if logprobs[i] != logprobs[i] {
			return fmt.Errorf("token %d of the prompt: %w", len(s.result.Prompt)+1, ErrNotFinite)
		}
		row := logits[i*e.m.Vocab : (i+1)*e.m.Vocab]
		t := PromptToken{TokenLogProb: TokenLogProb{id, logprobs[i]}, Rank: 1}
		for _, v := range row {
			if v > row[id] {
				t.Rank++
			}
		}
		t.Top = topLogProbs(row, s.req.PromptTop, 1, m[2*i], m[2*i+1])
		s.result.Prompt = append(s.result.Prompt, t)
	}
	return nil
}
