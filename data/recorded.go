package data

import (
	"fmt"
	"strings"

	"lockstep/data/ordered"
)

// Recorded is a completion as an engine sampled it: a log-probability for each of its tokens.
type Recorded struct {
	Prompt, IDs []int32
	LogProbs    []float32
	Temperature float32 // of the log-probabilities; 0: the likeliest tokens were taken, with log-probabilities at 1
}

// Names of a recording's parts. A log-probability is a number or, as SGLang writes it, a list that begins with one.
var (
	RecordedPrompts  = []string{"prompt_ids", "prompt_token_ids", "input_ids"}
	RecordedIDs      = []string{"ids", "token_ids", "output_ids"}
	RecordedLogProbs = []string{"logprobs", "rollout_log_probs", "output_token_logprobs"}
)

// ReadRecorded reads a line, whose sequence fits a model of so many tokens and positions.
func ReadRecorded(line *ordered.Dict, vocab, positions int) (r Recorded, err error) {
	for _, part := range []struct {
		names []string
		read  func(key string, v any) error
	}{
		{RecordedPrompts, func(key string, v any) (err error) { r.Prompt, err = tokens(key, v, 1, vocab); return err }},
		{RecordedIDs, func(key string, v any) (err error) { r.IDs, err = tokens(key, v, 1, vocab); return err }},
		{RecordedLogProbs, func(key string, v any) (err error) { r.LogProbs, err = readLogProbs(key, v); return err }},
	} {
		key, v, err := oneOf(line, part.names)
		if err == nil {
			err = part.read(key, v)
		}
		if err != nil {
			return Recorded{}, err
		}
	}
	if r.Temperature, err = readTemperature(line); err != nil {
		return Recorded{}, err
	}
	switch n := len(r.Prompt) + len(r.IDs); {
	case len(r.IDs) != len(r.LogProbs):
		err = fmt.Errorf("%d tokens and %d log-probabilities, give one for each", len(r.IDs), len(r.LogProbs))
	case n > positions:
		err = fmt.Errorf("%d tokens, the model has %d positions", n, positions)
	}
	return r, err
}

// oneOf is the line's key among names, of which it must have exactly one, and its value.
func oneOf(line *ordered.Dict, names []string) (key string, value any, err error) {
	for _, name := range names {
		v, ok := line.Get(name)
		switch {
		case !ok:
		case key != "":
			return "", nil, fmt.Errorf("both %q and %q, give one of them", key, name)
		default:
			key, value = name, v
		}
	}
	if key == "" {
		return "", nil, fmt.Errorf("no %q, give it as one of %s", names[0], strings.Join(names, ", "))
	}
	return key, value, nil
}

// readTemperature is the line's "temperature", or 1.
func readTemperature(line *ordered.Dict) (float32, error) {
	v, ok := line.Get("temperature")
	if !ok {
		return 1, nil
	}
	switch x := v.(type) {
	case float64:
		return float32(x), nil
	case int64:
		return float32(x), nil
	}
	return 0, fmt.Errorf("temperature is not a number, give that of the log-probabilities or remove it")
}

func readLogProbs(key string, v any) ([]float32, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%s is not a list, give a number for each token", key)
	}
	out := make([]float32, len(list))
	for i, x := range list {
		if entry, ok := x.([]any); ok && len(entry) > 0 {
			x = entry[0]
		}
		switch x := x.(type) {
		case float64:
			out[i] = float32(x) + 0 // no -0
		case int64:
			out[i] = float32(x)
		default:
			return nil, fmt.Errorf("%s[%d] is not a number, give the log-probability of the token", key, i)
		}
		if out[i] > 0 {
			return nil, fmt.Errorf("%s[%d] is %v, a log-probability is at most 0", key, i, out[i])
		}
	}
	return out, nil
}
