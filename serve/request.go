package serve

import "fmt"

// Request is one sample to generate.
type Request struct {
	ID          uint64 // identity of the sample in the generator: samples of one prompt need different ones
	Prompt      []int32
	MaxTokens   int
	Temperature float32 // 0: greedy
	TopP        float32 // 1: all
	TopK        int     // 0: all
	Seed        uint64
	Stop        []int32 // ids that end the sequence; the stopping id is part of the result
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

// Result is a finished sample: its new tokens with their log-probabilities under the untempered distribution, and the versions of the weights that chose them.
type Result struct {
	IDs      []int32
	LogProbs []float32
	Versions []int // see Engine.Refresh
	Finish   FinishReason
}

func (q *Request) validate(vocab, maxLength int) error {
	switch {
	case len(q.Prompt) == 0:
		return fmt.Errorf("the prompt has no tokens")
	case q.MaxTokens <= 0:
		return fmt.Errorf("max tokens is %d: want at least 1", q.MaxTokens)
	case len(q.Prompt) >= maxLength:
		return fmt.Errorf("the prompt has %d tokens and the model %d positions: shorten it", len(q.Prompt), maxLength)
	case q.Temperature < 0 || q.TopK < 0 || q.TopP <= 0 || q.TopP > 1:
		return fmt.Errorf("want temperature >= 0, top-k >= 0 and 0 < top-p <= 1")
	}
	for i, id := range q.Prompt {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("token %d of the prompt is %d: the vocabulary has %d", i, id, vocab)
		}
	}
	return nil
}
