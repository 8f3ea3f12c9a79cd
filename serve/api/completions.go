package api

import (
	"cmp"
	"math"
	"net/http"

	"lockstep/data"
	"lockstep/serve"
)

// defaultMaxTokens bounds a completion without max_tokens, as in OpenAI's interface.
const defaultMaxTokens = 16

// completions answers POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	s.generate(w, r, s.parseCompletion, completionFormat{s.served.Tokenizer}, s.newHeader("cmpl", "text_completion"))
}

func (s *Server) parseCompletion(f *fields) (*samplingRequest, error) {
	req := s.samplingFields(f)
	req.prompts = s.parsePrompts(f)
	absent := int64(cmp.Or(s.samplingDefaults().MaxTokens, defaultMaxTokens))
	req.sample.MaxTokens = int(f.integer("max_tokens", absent, 1, math.MaxInt32))
	req.logprobs = f.get("logprobs") != nil
	req.sample.TopLogProbs = int(f.integer("logprobs", 0, 0, maxTopLogProbs))
	f.allow("echo", "echo is not supported: lockstep score gives a prompt's log-probabilities", false)
	f.allow("best_of", "best_of is not supported: request n samples and choose one", int64(req.n))
	f.allow("suffix", "suffix is not supported", "")
	return req, s.validate(f, req)
}

// parsePrompts reads the prompt: a string, a list of token ids, or a list of either.
func (s *Server) parsePrompts(f *fields) (prompts [][]int32) {
	v := f.get("prompt")
	list, isList := v.([]any)
	if !isList || len(list) > 0 && isToken(list[0]) {
		list = []any{v}
	}
	for _, x := range list {
		if text, ok := x.(string); ok {
			if s.served.Tokenizer == nil {
				f.reject("prompt", "the model has no tokenizer: give token ids")
				return nil
			}
			prompts = append(prompts, s.served.Tokenizer.Encode(text))
		} else {
			prompts = append(prompts, f.tokenIDs("prompt", x))
		}
	}
	if len(prompts) == 0 {
		f.reject("prompt", "want a string, a list of token ids, or a list of either")
	}
	return prompts
}

func isToken(v any) bool { _, ok := v.(int64); return ok }

// completionFormat makes the responses of /v1/completions.
type completionFormat struct{ tokenizer *data.ChatTokenizer }

type completionResponse struct {
	responseHeader
	Choices []completionChoice `json:"choices"`
	Usage   *usage             `json:"usage,omitempty"`
}

type completionChoice struct {
	Index     int                 `json:"index"`
	Text      string              `json:"text"`
	LogProbs  *completionLogProbs `json:"logprobs"`
	Finish    *serve.FinishReason `json:"finish_reason"`
	PromptIDs []int32             `json:"prompt_token_ids,omitempty"`
	IDs       []int32             `json:"token_ids,omitempty"`
}

type completionLogProbs struct {
	Tokens   []string             `json:"tokens"`
	LogProbs []float32            `json:"token_logprobs"`
	Top      []map[string]float32 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"`
}

func (v completionFormat) choice(req *samplingRequest, c *choice, d delta) completionChoice {
	out := completionChoice{Index: c.index, Text: d.text, Finish: c.finishReason(), IDs: req.ids(d)}
	if req.logprobs {
		out.LogProbs = v.logProbs(req, d)
	}
	return out
}

func (v completionFormat) logProbs(req *samplingRequest, d delta) *completionLogProbs {
	l := &completionLogProbs{Tokens: []string{}, LogProbs: []float32{}, Offsets: append([]int{}, d.offsets...)}
	for _, t := range d.tokens {
		text := tokenText(v.tokenizer, t.id)
		l.Tokens, l.LogProbs = append(l.Tokens, text), append(l.LogProbs, finite(t.logprob))
		if req.sample.TopLogProbs > 0 {
			top := map[string]float32{text: finite(t.logprob)}
			for _, x := range t.top {
				top[tokenText(v.tokenizer, x.ID)] = finite(x.LogProb)
			}
			l.Top = append(l.Top, top)
		}
	}
	return l
}

func (v completionFormat) response(h responseHeader, req *samplingRequest, choices []*choice, deltas []delta) any {
	res := completionResponse{responseHeader: h, Usage: newUsage(req, choices)}
	for i, c := range choices {
		out := v.choice(req, c, deltas[i])
		if req.tokenIDs {
			out.PromptIDs = c.prompt
		}
		res.Choices = append(res.Choices, out)
	}
	return res
}

func (v completionFormat) firstChunk(responseHeader, *choice) any { return nil }

func (v completionFormat) chunk(h responseHeader, req *samplingRequest, c *choice, d delta, u *usage) any {
	return completionResponse{responseHeader: h, Choices: []completionChoice{v.choice(req, c, d)}, Usage: u}
}

func (v completionFormat) usageChunk(h responseHeader, u *usage) any {
	return completionResponse{responseHeader: h, Choices: []completionChoice{}, Usage: u}
}
