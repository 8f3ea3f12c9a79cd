package serve

import (
	"fmt"

	"lockstep/kernels"
)

// Request is one sample to generate.
type Request struct {
	ID          uint64 // identity of the sample in the generator: samples of one prompt need different ones
	Prompt      []int32
	MaxTokens   int
	Temperature float32 // also of the log-probabilities; 0: greedy, with log-probabilities at 1
	TopP        float32 // 1: all
	TopK        int     // 0: all
	Seed        uint64
	Stop        []int32 // ids that end the sequence; the stopping id is part of the result
	TopLogProbs int     `json:",omitempty"` // number of most likely tokens to list with each generated token
	// Forced tokens are taken instead of sampled ones (the proof feeds known sequences through the decode path).
	Forced []int32
}

// FinishReason says why a sequence ended.
type FinishReason string

const (
	FinishStop      FinishReason = "stop"
	FinishLength    FinishReason = "length"
	FinishCancelled FinishReason = "cancelled"
)

// Result is a finished sample: its new tokens with their log-probabilities at the request's temperature, over the whole
// vocabulary whatever top-p and top-k leave of it, and the versions of the weights that chose them.
type Result struct {
	IDs         []int32
	LogProbs    []float32
	Versions    []int            // see Engine.Refresh
	TopLogProbs [][]TokenLogProb `json:",omitempty"` // for each of IDs, if the request asks for them
	Finish      FinishReason
}

// validTemperature reports one at which logits are no numbers any more.
func validTemperature(t float32) error {
	if t == 0 || t >= kernels.LeastTemperature && t <= kernels.MostTemperature {
		return nil
	}
	return fmt.Errorf("temperature %g: want 0 (the likeliest token), or %g to %g", t, kernels.LeastTemperature,
		kernels.MostTemperature)
}

func (q *Request) validate(vocab, maxLength int) error {
	switch {
	case len(q.Prompt) == 0:
		return fmt.Errorf("the prompt has no tokens")
	case q.MaxTokens <= 0:
		return fmt.Errorf("max tokens is %d: want at least 1", q.MaxTokens)
	case len(q.Prompt) >= maxLength:
		return fmt.Errorf("the prompt has %d tokens and the model %d positions: shorten it", len(q.Prompt), maxLength)
	case q.TopK < 0 || q.TopP <= 0 || q.TopP > 1:
		return fmt.Errorf("want top-k >= 0 and 0 < top-p <= 1")
	case q.TopLogProbs < 0 || q.TopLogProbs > vocab:
		return fmt.Errorf("%d likeliest tokens: the vocabulary has %d", q.TopLogProbs, vocab)
	}
	if err := validTemperature(q.Temperature); err != nil {
		return err
	}
	for i, id := range q.Prompt {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("token %d of the prompt is %d: the vocabulary has %d", i, id, vocab)
		}
	}
	return nil
}
