package api

import (
	"cmp"
	"fmt"
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
	s.parsePrompts(f, req)
	absent := int64(cmp.Or(s.samplingDefaults().MaxTokens, defaultMaxTokens))
	req.sample.MaxTokens = int(f.integer("max_tokens", absent, 0, math.MaxInt32))
	req.logprobs = f.get("logprobs") != nil
	req.sample.TopLogProbs = int(f.integer("logprobs", 0, 0, maxTopLogProbs))
	if req.echo = f.boolean("echo"); req.echo && req.logprobs {
		req.sample.PromptLogProbs, req.sample.PromptTop = true, max(req.sample.PromptTop, req.sample.TopLogProbs)
	}
	req.sample.PromptLogProbs = req.sample.PromptLogProbs || req.sample.MaxTokens == 0 // the engine has to compute it
	f.allow("best_of", "best_of is not supported: request n samples and choose one", int64(req.n))
	f.allow("suffix", "suffix is not supported", "")
	return req, s.validate(f, req)
}

// parsePrompts reads the prompt: a string, a list of token ids, or a list of either.
func (s *Server) parsePrompts(f *fields, req *samplingRequest) {
	v := f.get("prompt")
	list, isList := v.([]any)
	if !isList || len(list) > 0 && isToken(list[0]) {
		list = []any{v}
	}
	for _, x := range list {
		if text, ok := x.(string); ok {
			if s.served.Tokenizer == nil {
				f.reject("prompt", "the model has no tokenizer: give token ids")
				return
			}
			req.prompts = append(req.prompts, s.served.Tokenizer.Encode(text))
		} else {
			req.prompts = append(req.prompts, f.tokenIDs("prompt", x, s.served.Model.Vocab))
		}
	}
	if len(req.prompts) == 0 {
		f.reject("prompt", "want a string, a list of token ids, or a list of either")
	}
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
	Prompt    []promptLogProbs    `json:"prompt_logprobs,omitempty"`
}

type completionLogProbs struct {
	Tokens   []string             `json:"tokens"`
	LogProbs []*float32           `json:"token_logprobs"` // null: the first token of an echoed prompt has none
	Top      []map[string]float32 `json:"top_logprobs"`   // likewise
	Offsets  []int                `json:"text_offset"`
}

func (v completionFormat) choice(req *samplingRequest, c *choice, d delta) completionChoice {
	out := completionChoice{Index: c.index, Text: d.text, Finish: c.finishReason(), IDs: req.ids(d),
		Prompt: req.promptLogProbs(v.tokenizer, c)}
	if req.logprobs {
		out.LogProbs = v.logProbs(req, d)
	}
	return out
}

func (v completionFormat) logProbs(req *samplingRequest, d delta) *completionLogProbs {
	l := &completionLogProbs{Tokens: []string{}, LogProbs: []*float32{}, Offsets: append([]int{}, d.offsets...)}
	for i, t := range d.tokens {
		l.Tokens = append(l.Tokens, v.tokenName(t.id))
		var logprob *float32
		var top map[string]float32
		if i > 0 || d.echoed == 0 {
			x := finite(t.logprob)
			logprob, top = &x, v.top(t, req.sample.TopLogProbs)
		}
		l.LogProbs = append(l.LogProbs, logprob)
		if req.sample.TopLogProbs > 0 {
			l.Top = append(l.Top, top)
		}
	}
	return l
}

// top are the n most likely tokens at a token's position, and the token. Of several with the same text it has the
// likeliest.
func (v completionFormat) top(t token, n int) map[string]float32 {
	top := map[string]float32{v.tokenName(t.id): finite(t.logprob)}
	for _, x := range t.top[:min(n, len(t.top))] {
		name, logprob := v.tokenName(x.ID), finite(x.LogProb)
		if other, ok := top[name]; !ok || other < logprob {
			top[name] = logprob
		}
	}
	return top
}

// tokenName is a token's text, or "token_id:ID", as vLLM writes it, without a tokenizer.
func (v completionFormat) tokenName(id int32) string {
	if v.tokenizer == nil {
		return fmt.Sprintf("token_id:%d", id)
	}
	return tokenText(v.tokenizer, id)
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

func (v completionFormat) chunks(h responseHeader, req *samplingRequest, c *choice, d delta, u *usage) []any {
	return []any{completionResponse{responseHeader: h, Choices: []completionChoice{v.choice(req, c, d)}, Usage: u}}
}

func (v completionFormat) usageChunk(h responseHeader, u *usage) any {
	return completionResponse{responseHeader: h, Choices: []completionChoice{}, Usage: u}
}
