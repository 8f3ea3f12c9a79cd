package api

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"time"

	"lockstep/data"
	"lockstep/data/ordered"
	"lockstep/serve"
)

const (
	mostSamples = 1024 // of one HTTP request
	mostTop     = 20
	plainTokens = 16 // of a completion that does not say, as in OpenAI's interface
)

// ask is what a client wants: n samples of each prompt.
type ask struct {
	prompts [][]int32
	n       int
	request serve.Request // of every sample, but for its prompt and identity
	rest    bool          // as many tokens as there is room for
	seeded  bool          // the same request has the same answers again
	stops   []string      // texts that end an answer and are no part of it

	stream, usage bool // usage: a stream ends with what it cost
	logprobs      bool
	top           int
	ids           bool // tokens are told as ids too
}

// sampled reads what both interfaces have.
func (s *Server) sampled(f *form) *ask {
	a := &ask{n: int(f.integer("n", 1, 1, mostSamples)), stops: f.texts("stop"), stream: f.flag("stream"),
		ids: f.flag("return_token_ids") || s.served.Language == nil}
	if o, ok := f.get("stream_options").(*ordered.Dict); ok {
		inner := &form{d: o, known: map[string]bool{}}
		a.usage = inner.flag("include_usage")
		if err := inner.err(); err != nil {
			f.refuse("stream_options", "%v", err)
		}
	} else if f.get("stream_options") != nil {
		f.refuse("stream_options", "want an object")
	}
	q := &a.request
	d := s.defaults()
	q.Temperature = float32(f.number("temperature", d.Temperature, 0, 100))
	q.TopP = float32(f.number("top_p", d.TopP, 0, 1))
	q.TopK = int(max(f.integer("top_k", int64(d.TopK), -1, math.MaxInt32), 0))
	q.Seed = s.o.Seed
	if a.seeded = f.get("seed") != nil; a.seeded {
		q.Seed = uint64(f.integer("seed", 0, math.MinInt64, math.MaxInt64))
	}
	if v := f.get("stop_token_ids"); v != nil {
		q.Stop = f.tokens("stop_token_ids", v)
	}
	if !f.flag("ignore_eos") {
		q.Stop = slices.Concat(q.Stop, s.served.Stops())
	}
	if len(a.stops) > 0 && s.served.Language == nil || slices.Contains(a.stops, "") {
		f.refuse("stop", "want texts that are not empty, and a model with a tokenizer")
	}
	s.plain(f)
	return a
}

// defaults are the sampling of requests that do not say: OpenAI's, but for what generation_config.json of the model
// gives. MaxTokens 0: it gives none.
func (s *Server) defaults() serve.Sampling {
	return serve.Sampling{Temperature: 1, TopP: 1}.With(s.served.Model.Sampling, func(string) bool { return false })
}

// plain knows the fields that this server has no means for, where they ask for nothing.
func (s *Server) plain(f *form) {
	if name := f.get("model"); name != nil && name != s.o.Name && f.fault == nil {
		f.fault = &fault{status: http.StatusNotFound, field: "model", message: "model: this server has " + s.o.Name}
	}
	f.only("frequency_penalty", "penalties are not supported", int64(0), 0.0)
	f.only("presence_penalty", "penalties are not supported", int64(0), 0.0)
	f.only("repetition_penalty", "penalties are not supported", int64(1), 1.0)
	f.only("min_p", "min_p is not supported", int64(0), 0.0)
	f.only("min_tokens", "min_tokens is not supported", int64(0))
	f.only("logit_bias", "biases are not supported", ordered.NewDict())
	f.ignore("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "priority")
}

// completion reads a request of /v1/completions.
func (s *Server) completion(f *form) (*ask, error) {
	a := s.sampled(f)
	a.prompts = s.prompts(f)
	most := int64(cmp.Or(s.defaults().MaxTokens, plainTokens))
	a.request.MaxTokens = int(f.integer("max_tokens", most, 1, math.MaxInt32))
	a.logprobs = f.get("logprobs") != nil
	a.top = int(f.integer("logprobs", 0, 0, mostTop))
	f.only("echo", "prompts are not repeated; lockstep score has their log-probabilities", false)
	f.only("best_of", "best_of is not supported: ask for n and choose", int64(a.n))
	f.only("suffix", "suffixes are not supported", "")
	return a, s.settle(f, a)
}

// prompts are a text, texts, tokens or lists of tokens.
func (s *Server) prompts(f *form) (all [][]int32) {
	v := f.get("prompt")
	list, isList := v.([]any)
	if !isList || len(list) > 0 && isToken(list[0]) {
		list = []any{v}
	}
	for _, x := range list {
		if text, ok := x.(string); ok {
			if s.served.Language == nil {
				f.refuse("prompt", "the model has no tokenizer: give token ids")
				return nil
			}
			all = append(all, s.served.Language.Encode(text))
		} else {
			all = append(all, f.tokens("prompt", x))
		}
	}
	if len(all) == 0 {
		f.refuse("prompt", "want a text, a list of token ids, or a list of either")
	}
	return all
}

func isToken(v any) bool { _, ok := v.(int64); return ok }

// conversation reads a request of /v1/chat/completions.
func (s *Server) conversation(f *form) (*ask, error) {
	a := s.sampled(f)
	line := ordered.NewDict()
	for _, name := range []string{"messages", "tools", "chat_template_kwargs"} {
		if v := f.get(name); v != nil {
			line.Set(name, v)
		}
	}
	prompt, err := data.Prompt(line, s.served.Language, s.served.Model.Vocab, time.Now())
	if err != nil {
		f.refuse("messages", "%v", err)
	}
	a.prompts = [][]int32{prompt}
	most := f.integer("max_tokens", int64(s.defaults().MaxTokens), 1, math.MaxInt32)
	if most = f.integer("max_completion_tokens", most, 1, math.MaxInt32); most == 0 {
		a.rest = true
	}
	a.request.MaxTokens = int(most)
	a.logprobs = f.flag("logprobs")
	if a.top = int(f.integer("top_logprobs", 0, 0, mostTop)); a.top > 0 && !a.logprobs {
		f.refuse("top_logprobs", "give logprobs too")
	}
	f.only("tool_choice", "a call of a tool cannot be forced; what the model writes to call one is in the text", "none",
		"auto")
	text := ordered.NewDict()
	text.Set("type", "text")
	f.only("response_format", "answers cannot be held to a format", text)
	f.ignore("parallel_tool_calls")
	return a, s.settle(f, a)
}

// settle is what can be said once all fields are read.
func (s *Server) settle(f *form, a *ask) error {
	a.request.Top = a.top
	if a.n*len(a.prompts) > mostSamples {
		f.refuse("n", "%d samples of %d prompts: want at most %d in all", a.n, len(a.prompts), mostSamples)
	}
	return f.err()
}

// requests are the samples of an ask, those of a prompt in a row. The samples of a seed differ by their number; where
// there is no seed start numbers all that the server ever draws.
func (s *Server) requests(a *ask) (all []serve.Request) {
	for _, p := range a.prompts {
		for i := range a.n {
			q := a.request
			q.Prompt, q.ID = p, uint64(i)
			if a.rest {
				q.MaxTokens = max(1, s.engine.Positions()-len(p))
			}
			all = append(all, q)
		}
	}
	return all
}
