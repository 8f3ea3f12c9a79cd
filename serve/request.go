package serve

import (
	"errors"
	"fmt"

	"lockstep/kernels"
)

// Request is one sample to generate.
type Request struct {
	ID          uint64 // of the sample, for its random numbers: samples of one prompt need different IDs
	Prompt      []int32
	MaxTokens   int
	Temperature float32 // of sampling and of the log-probabilities; 0: greedy, with log-probabilities at 1
	TopP        float32 // 1: all
	TopK        int     // 0: all
	Adjust      Adjust  `json:",omitzero"`
	Seed        uint64
	Stop        []int32 // ids that end the sequence; the stopping id is part of the result
	TopLogProbs int     `json:",omitempty"` // number of most likely tokens to list with each generated token
	// PromptLogProbs asks for Result.Prompt, with PromptTop of the most likely tokens at each position. MaxTokens may
	// be 0 then.
	PromptLogProbs bool `json:",omitempty"`
	PromptTop      int  `json:",omitempty"`
	// KeepLogits keeps the logits that each token is sampled by, until [Replicas.TakeKept].
	KeepLogits bool `json:",omitempty"`
	// Forced tokens replace the first sampled ones: Verify feeds known sequences through the decode path.
	Forced []int32
}

// FinishReason says why a sequence ended.
type FinishReason string

const (
	FinishStop      FinishReason = "stop"
	FinishLength    FinishReason = "length"
	FinishCancelled FinishReason = "cancelled"
	FinishFailed    FinishReason = "error" // see Result.Err
)

// ErrNotFinite is why a request fails for which the model computes logits that are no numbers.
var ErrNotFinite = errors.New("the model's logits are not finite: its weights are damaged or its training has diverged")

// Result is a finished sample.
type Result struct {
	IDs []int32 // generated tokens
	// in nats, at the request's temperature over the whole vocabulary, without top-p and top-k
	LogProbs    []float32
	Versions    []int            // of the weights, for each token; see Engine.Refresh
	TopLogProbs [][]TokenLogProb `json:",omitempty"` // for each of IDs, if the request asks for them
	Prompt      []PromptToken    `json:",omitempty"` // the prompt's tokens from the second on, if the request asks
	Finish      FinishReason
	Err         error `json:"-"` // of FinishFailed
}

// validTemperature rejects temperatures at which scaled logits overflow.
func validTemperature(t float32) error {
	if t == 0 || t >= kernels.LeastTemperature && t <= kernels.MostTemperature {
		return nil
	}
	return fmt.Errorf("temperature %g: want 0 (greedy), or %g to %g", t, kernels.LeastTemperature,
		kernels.MostTemperature)
}

func (q *Request) validate(vocab, maxLength int) error {
	switch {
	case len(q.Prompt) == 0:
		return fmt.Errorf("the prompt is empty")
	case q.MaxTokens < 0 || q.MaxTokens == 0 && !q.PromptLogProbs:
		return fmt.Errorf("max tokens is %d: want at least 1", q.MaxTokens)
	case len(q.Prompt)+min(q.MaxTokens, 1) > maxLength:
		return fmt.Errorf("the prompt has %d tokens and the model %d positions: shorten it", len(q.Prompt), maxLength)
	case q.TopK < 0 || !(q.TopP > 0 && q.TopP <= 1): // nor is it NaN
		return fmt.Errorf("want top-k >= 0 and 0 < top-p <= 1")
	}
	for _, n := range []int{q.TopLogProbs, q.PromptTop} {
		if n < 0 || n > vocab {
			return fmt.Errorf("top log-probabilities of %d tokens: want 0 to %d, the size of the vocabulary", n, vocab)
		}
	}
	if err := validTemperature(q.Temperature); err != nil {
		return err
	}
	if err := q.Adjust.validate(vocab); err != nil {
		return err
	}
	for i, id := range q.Prompt {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("token %d of the prompt is %d: the vocabulary has %d tokens", i, id, vocab)
		}
	}
	return nil
}
