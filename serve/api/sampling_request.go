package api

import (
	"math"
	"slices"
	"strconv"

	"lockstep/data/ordered"
	"lockstep/kernels"
	"lockstep/serve"
	"lockstep/serve/api/toolcalls"
)

const (
	maxSamples     = 1024 // of one HTTP request
	maxTopLogProbs = 20
	// log-probabilities of prompts that a response lists
	maxPromptLogProbs = 1 << 20
	// of a request: each is looked for in every token
	maxStops, maxStopBytes, maxStopIDs = 64, 1024, 1024
	maxBiases                          = 1024
)

// samplingRequest is a parsed request for completions or chat completions: n samples of each prompt.
type samplingRequest struct {
	prompts   [][]int32
	echo      bool // the text begins with the prompt's
	listed    *int // the response has prompt_logprobs with so many of the most likely tokens; nil: it has none
	n         int
	sample    serve.Request // of every sample, without its prompt and ID
	fill      bool          // generate up to the context length; sample.MaxTokens is 0
	seeded    bool          // it has a seed: equal requests get equal responses
	stops     []string      // stop strings, which are not part of the text
	logprobs  bool
	tokenIDs  bool // the response has token ids too
	stream    bool
	showUsage bool // a stream ends with its usage
	// each chunk of a stream has the usage so far
	chunkUsage bool
	answer     *toolcalls.Options // how a chat completion is read; nil: of completions
}

// samplingFields reads the fields that completions and chat completions share.
func (s *Server) samplingFields(f *fields) *samplingRequest {
	req := &samplingRequest{
		n: int(f.integer("n", 1, 1, maxSamples)), stops: f.strings("stop", maxStops, maxStopBytes),
		stream: f.boolean("stream"), tokenIDs: f.boolean("return_token_ids") || s.served.Tokenizer == nil,
	}
	if o, ok := f.get("stream_options").(*ordered.Dict); ok {
		options := &fields{object: o, known: map[string]bool{}}
		req.showUsage = options.boolean("include_usage")
		req.chunkUsage = options.boolean("continuous_usage_stats")
		if err := options.err(); err != nil {
			f.reject("stream_options", "%v", err)
		}
	} else if f.get("stream_options") != nil {
		f.reject("stream_options", "want an object")
	}
	q := &req.sample
	d := s.samplingDefaults()
	q.Temperature = float32(f.number("temperature", d.Temperature, 0, 100))
	q.TopP = float32(f.number("top_p", d.TopP, 0, 1))
	q.TopK = int(max(f.integer("top_k", int64(d.TopK), -1, math.MaxInt32), 0))
	q.Adjust = s.adjust(f, d)
	q.Seed = s.options.Seed
	if req.seeded = f.get("seed") != nil; req.seeded {
		q.Seed = uint64(f.integer("seed", 0, math.MinInt64, math.MaxInt64))
	}
	if v := f.get("stop_token_ids"); v != nil {
		if q.Stop = f.tokenIDs("stop_token_ids", v, s.served.Model.Vocab); len(q.Stop) > maxStopIDs {
			f.reject("stop_token_ids", "want at most %d ids", maxStopIDs)
		}
	}
	if f.get("prompt_logprobs") != nil {
		n := int(f.integer("prompt_logprobs", 0, 0, maxTopLogProbs))
		if req.listed, q.PromptLogProbs, q.PromptTop = &n, true, n; req.stream {
			f.reject("prompt_logprobs", "not in a stream: a stream echoes the prompt's log-probabilities")
		}
	}
	if !f.boolean("ignore_eos") {
		q.Stop = slices.Concat(q.Stop, s.served.StopTokens())
	}
	if len(req.stops) > 0 && s.served.Tokenizer == nil || slices.Contains(req.stops, "") {
		f.reject("stop", "want strings that are not empty, and a model with a tokenizer")
	}
	s.otherFields(f)
	return req
}

// adjust reads what changes the draw and no log-probability, by the defaults d.
func (s *Server) adjust(f *fields, d serve.Sampling) serve.Adjust {
	const most = serve.MostPenalty
	return serve.Adjust{
		Bias:      s.logitBias(f),
		Frequency: float32(f.number("frequency_penalty", 0, -most, most)),
		Presence:  float32(f.number("presence_penalty", 0, -most, most)),
		Repetition: float32(f.number("repetition_penalty", d.Repetition, kernels.LeastRepetition,
			kernels.MostRepetition)),
		MinP: float32(f.number("min_p", d.MinP, 0, 1)),
	}
}

// logitBias reads {"ID": number}.
func (s *Server) logitBias(f *fields) map[int32]float32 {
	v := f.get("logit_bias")
	if v == nil {
		return nil
	}
	object, ok := v.(*ordered.Dict)
	if !ok || object.Len() > maxBiases {
		f.reject("logit_bias", "want an object of at most %d numbers by token id", maxBiases)
		return nil
	}
	biases := map[int32]float32{}
	each := &fields{object: object, known: map[string]bool{}}
	for _, key := range object.Keys() {
		name, _ := key.(string) // of JSON
		id, err := strconv.Atoi(name)
		if err != nil || id < 0 || id >= s.served.Model.Vocab {
			f.reject("logit_bias", "%.40q: want a token id below %d, the size of the vocabulary", name,
				s.served.Model.Vocab)
			return nil
		}
		biases[int32(id)] = float32(each.number(name, 0, -serve.MostBias, serve.MostBias))
	}
	if each.first != nil {
		f.reject("logit_bias", "%v", each.first)
	}
	return biases
}

// samplingDefaults is the sampling of requests without these fields: OpenAI's defaults, overridden by
// generation_config.json of the model. MaxTokens is 0 if the file does not set it.
func (s *Server) samplingDefaults() serve.Sampling {
	return serve.Sampling{Temperature: 1, TopP: 1, Repetition: 1}.WithDefaults(s.served.Model.Sampling,
		func(string) bool { return false })
}

// otherFields checks the model's name, accepts unsupported fields with neutral values, and ignores the fields that
// change no response.
func (s *Server) otherFields(f *fields) {
	if name := f.get("model"); name != nil && name != s.options.Name && f.first == nil {
		f.first = s.otherModel()
	}
	f.allow("min_tokens", "min_tokens is not supported", int64(0))
	f.ignore("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "priority")
}

// validate checks what depends on several fields, and returns the request's first error.
func (s *Server) validate(f *fields, req *samplingRequest) error {
	if req.n*len(req.prompts) > maxSamples {
		f.reject("n", "%d samples of %d prompts: want at most %d in all", req.n, len(req.prompts), maxSamples)
	}
	if req.sample.PromptLogProbs && newUsage(req, nil).Prompt*req.n*(1+req.sample.PromptTop) > maxPromptLogProbs {
		f.reject("prompt", "more than %d log-probabilities of prompts: ask for less at a time", maxPromptLogProbs)
	}
	return f.err()
}

// samples lists the engine's requests: n for the first prompt, then n for the next. Samples of one seed differ by their
// ID, which counts from 0; submit replaces the IDs of a request without a seed.
func (s *Server) samples(req *samplingRequest) (all []serve.Request) {
	for _, prompt := range req.prompts {
		for i := range req.n {
			q := req.sample
			q.Prompt, q.ID = prompt, uint64(i)
			if req.fill {
				q.MaxTokens = max(1, s.engine.MaxLength()-len(prompt))
			}
			all = append(all, q)
		}
	}
	return all
}
