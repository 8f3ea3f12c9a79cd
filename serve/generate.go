package serve

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"lockstep/data"
	"lockstep/data/atomicfile"
	"lockstep/data/ordered"
)

// Sampling configures Generate.
type Sampling struct {
	MaxTokens   int
	Temperature float64
	TopP        float64
	TopK        int
	MinP        float64 // of [Adjust], as Repetition
	Repetition  float64
	N           int // samples of each prompt
	Seed        uint64
	IgnoreEOS   bool
}

// WithDefaults overrides the fields whose flags were not given by those of a model's generation_config.json.
func (q Sampling) WithDefaults(g data.Generation, given func(flag string) bool) Sampling {
	if g.Temperature != nil && !given("temperature") {
		q.Temperature = *g.Temperature
	}
	if g.TopP != nil && !given("top-p") {
		q.TopP = *g.TopP
	}
	if g.TopK != nil && !given("top-k") {
		q.TopK = *g.TopK
	}
	if g.MinP != nil && !given("min-p") {
		q.MinP = *g.MinP
	}
	if g.Repetition != nil && !given("repetition-penalty") {
		q.Repetition = *g.Repetition
	}
	if g.MaxTokens != nil && !given("max-tokens") {
		q.MaxTokens = *g.MaxTokens
	}
	return q
}

// sampleLine is a line of the output.
type sampleLine struct {
	Prompt   int          `json:"prompt"` // line of the input, counted from 0
	Sample   int          `json:"sample"`
	Tokens   []int32      `json:"prompt_ids"`
	IDs      []int32      `json:"ids"`
	Text     *string      `json:"text,omitempty"`
	LogProbs []float32    `json:"logprobs"` // at the temperature
	Finish   FinishReason `json:"finish_reason"`

	Temperature float32 `json:"temperature"`
}

// Generate samples N completions of each prompt of a JSONL file and writes a line for each, in order. It returns the
// number of lines.
func Generate(ctx context.Context, s *ServedModel, in, out string, o Options, q Sampling) (int, error) {
	var reqs []Request
	err := data.EachLine(in, func(n int, d *ordered.Dict) error {
		prompt, err := data.Prompt(ctx, d, s.Tokenizer, s.Model.Vocab, time.Now())
		if err != nil {
			return err
		}
		for i := range q.N {
			req := Request{
				ID: uint64(n)*uint64(q.N) + uint64(i), Prompt: prompt, MaxTokens: q.MaxTokens, Seed: q.Seed,
				Temperature: float32(q.Temperature), TopP: float32(q.TopP), TopK: q.TopK,
				Adjust: Adjust{Repetition: float32(q.Repetition), MinP: float32(q.MinP)},
			}
			if !q.IgnoreEOS {
				req.Stop = s.StopTokens()
			}
			if err := req.validate(s.Model.Vocab, s.Model.MaxLength); err != nil {
				return err
			}
			reqs = append(reqs, req)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	e, err := s.NewEngines(o)
	if err != nil {
		return 0, err
	}
	results, err := e.Run(ctx, reqs)
	if err != nil {
		return 0, err
	}
	return len(results), atomicfile.Write(out, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		for i, res := range results {
			if err := enc.Encode(s.sampleLine(i, q.N, reqs[i], res)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *ServedModel) sampleLine(i, n int, q Request, res Result) sampleLine {
	l := sampleLine{Prompt: i / n, Sample: i % n, Tokens: q.Prompt, IDs: res.IDs, Finish: res.Finish,
		LogProbs:    res.LogProbs,
		Temperature: q.Temperature}
	if s.Tokenizer != nil {
		ids := res.IDs
		if res.Finish == FinishStop {
			ids = ids[:len(ids)-1]
		}
		text := s.Tokenizer.Decode(ids)
		l.Text = &text
	}
	return l
}
