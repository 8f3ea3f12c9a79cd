package api

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/data/ordered"
	"lockstep/model"
	"lockstep/serve"
)

// Defaults come from generation_config.json, then from OpenAI's interface.
func TestSamplingDefaults(t *testing.T) {
	tok, err := data.NewChatTokenizer("bytes")
	if err != nil {
		t.Fatal(err)
	}
	temperature, topP, topK, minP, repetition, most := 0.25, 0.5, 7, 0.125, 1.5, 33
	given := data.Generation{Temperature: &temperature, TopP: &topP, TopK: &topK, MinP: &minP, Repetition: &repetition,
		MaxTokens: &most}
	const explicit = `, "temperature": 0.75, "top_p": 1, "top_k": 0, "max_tokens": 5, ` +
		`"min_p": 0, "repetition_penalty": 1`
	none, changed := serve.Adjust{Repetition: 1}, serve.Adjust{Repetition: 1.5, MinP: 0.125}
	for _, k := range []struct {
		sampling data.Generation
		request  string
		want     serve.Request
		fill     bool // of a chat completion
	}{
		{data.Generation{}, "", serve.Request{Temperature: 1, TopP: 1, MaxTokens: defaultMaxTokens, Adjust: none},
			true},
		{given, "", serve.Request{Temperature: 0.25, TopP: 0.5, TopK: 7, MaxTokens: 33, Adjust: changed},
			false},
		{given, explicit, serve.Request{Temperature: 0.75, TopP: 1, MaxTokens: 5, Adjust: none}, false},
		{data.Generation{}, explicit, serve.Request{Temperature: 0.75, TopP: 1, MaxTokens: 5, Adjust: none}, false},
	} {
		m := &model.Model{Vocab: 320, MaxLength: 256, Sampling: k.sampling}
		s := &Server{options: small(), served: &serve.ServedModel{Ranks: serve.Ranks{Model: m}, Tokenizer: tok}}
		for name, read := range map[string]func(*fields) (*samplingRequest, error){
			`"prompt": "a"`: s.parseCompletion, `"messages": [{"role": "user", "content": "a"}]`: s.parseChatCompletion,
		} {
			text := "{" + name + k.request + "}"
			d, err := ordered.Decode([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			a, err := read(&fields{object: d.(*ordered.Dict), known: map[string]bool{}})
			if err != nil {
				t.Fatal(err)
			}
			want, fill := k.want, k.fill && strings.HasPrefix(name, `"m`)
			if fill {
				want.MaxTokens = 0
			}
			q := a.sample
			got := serve.Request{Temperature: q.Temperature, TopP: q.TopP, TopK: q.TopK, MaxTokens: q.MaxTokens,
				Adjust: q.Adjust}
			if !reflect.DeepEqual(got, want) || a.fill != fill {
				t.Errorf("%s means %+v, fill %t, want %+v", text, got, a.fill, want)
			}
		}
	}
}

func TestRejected(t *testing.T) {
	_, url, _ := running(t, small())
	chat := func(more string) string { return `{"messages": [{"role": "user", "content": "x"}]` + more + `}` }
	for _, c := range []struct {
		path, body string
		status     int
		want       string // of the message
	}{
		{"completions", `{"prompt": "a"`, 400, "not JSON"},
		{"completions", `[1]`, 400, "not a JSON object"},
		{"completions", `{"promt": "a"}`, 400, `"promt": unknown field`},
		{"completions", `{}`, 400, "prompt: want"},
		{"completions", `{"prompt": []}`, 400, "prompt: want"},
		{"completions", `{"prompt": ""}`, 400, "the prompt is empty"},
		{"completions", `{"prompt": [1, 2.5]}`, 400, "prompt: want a list of token ids"},
		{"completions", `{"prompt": [[1], "a", {}]}`, 400, "prompt: want"},
		{"completions", `{"prompt": [3, 320]}`, 400, "the vocabulary has 320"},
		{"completions", `{"prompt": "a", "stop_token_ids": [3, 320]}`, 400,
			"stop_token_ids: token 320: the vocabulary has 320"},
		{"completions", `{"prompt": "a", "stop_token_ids": [-1]}`, 400, "stop_token_ids: want a list of token ids"},
		{"completions", `{"prompt": "a", "max_tokens": -1}`, 400, "max_tokens: want an integer from 0"},
		{"chat/completions", chat(`, "max_tokens": 0`), 400, "max_tokens: want an integer from 1"},
		{"completions", `{"prompt": "a", "temperature": -1}`, 400, "temperature: want a number from 0"},
		{"completions", `{"prompt": "a", "temperature": "hot"}`, 400, "temperature: want a number"},
		{"completions", `{"prompt": "a", "top_p": 0}`, 400, "top-p"},
		{"completions", `{"prompt": "a", "n": 2000}`, 400, "n: want"},
		{"completions", `{"prompt": ["a", "b"], "n": 1000}`, 400, "want at most 1024"},
		{"completions", `{"prompt": "a", "stop": ["x", ""]}`, 400, "stop: want strings"},
		{"completions", `{"prompt": "a", "stop": 3}`, 400, "stop: want a string"},
		{"completions", `{"prompt": "a", "logprobs": 21}`, 400, "logprobs: want"},
		{"completions", `{"prompt": "a", "echo": 1}`, 400, "echo: want true or false"},
		{"completions", `{"prompt": "a", "prompt_logprobs": 21}`, 400, "prompt_logprobs: want"},
		{"completions", `{"prompt": "a", "prompt_logprobs": 0, "stream": true}`, 400, "not in a stream"},
		{"chat/completions", chat(`, "prompt_logprobs": -1`), 400, "prompt_logprobs: want"},
		{"completions", `{"prompt": "` + strings.Repeat("a", 200) + `", "n": 1024, "prompt_logprobs": 5}`, 400,
			"more than 1048576 log-probabilities"},
		{"completions", `{"prompt": "a", "best_of": 2}`, 400, "best_of"},
		{"completions", `{"prompt": "a", "frequency_penalty": 2.5}`, 400, "frequency_penalty: want a number from -2"},
		{"completions", `{"prompt": "a", "presence_penalty": "1"}`, 400, "presence_penalty: want a number"},
		{"completions", `{"prompt": "a", "repetition_penalty": 0}`, 400, "repetition_penalty: want a number from 0.01"},
		{"completions", `{"prompt": "a", "min_p": 1.1}`, 400, "min_p: want a number from 0 to 1"},
		{"completions", `{"prompt": "a", "min_tokens": 1}`, 400, "min_tokens is not supported"},
		{"completions", `{"prompt": "a", "logit_bias": {"a": 1}}`, 400, `logit_bias: "a": want a token id below 320`},
		{"completions", `{"prompt": "a", "logit_bias": {"320": 1}}`, 400, "want a token id below 320"},
		{"completions", `{"prompt": "a", "logit_bias": {"3": 101}}`, 400, "logit_bias: 3: want a number from -100"},
		{"completions", `{"prompt": "a", "logit_bias": [3]}`, 400, "logit_bias: want an object of at most 1024"},
		{"completions", `{"prompt": "a", "model": "other"}`, 404, "this server has tiny"},
		{"completions", `{"prompt": "a", "stream_options": {"x": 1}}`, 400, "stream_options"},
		{"completions", `{"prompt": "` + strings.Repeat("a", 300) + `"}`, 400,
			"the prompt has 300 tokens and the model 256"},
		{"chat/completions", `{}`, 400, "messages: give exactly one"},
		{"chat/completions", `{"messages": []}`, 400, "messages"},
		{"chat/completions", `{"messages": [{"role": "king", "content": "x"}]}`, 400, "king"},
		{"chat/completions", chat(`, "top_logprobs": 2`), 400, "set logprobs too"},
		{"chat/completions", chat(`, "tool_choice": "required"`), 400, "tool"},
		{"chat/completions", chat(`, "response_format": {"type": "json_object"}`), 400, "structured output"},
		{"chat/completions", chat(`, "prompt": "a"`), 400, "unknown field"},
	} {
		status, text := post(t, url+"/v1/"+c.path, c.body)
		message := decode[struct{ Error struct{ Message string } }](t, text).Error.Message
		if status != c.status || !strings.Contains(message, c.want) || strings.Contains(message, "\n") {
			t.Errorf("%.80s: %d %s, want %d and %q", c.body, status, text, c.status, c.want)
		}
	}
	// Neutral values of unsupported fields are accepted.
	status, text := post(t, url+"/v1/completions", `{"prompt": "a", "frequency_penalty": 0, "presence_penalty": 0.0, `+
		`"logit_bias": {}, "best_of": 1, "echo": false, "suffix": null, "top_k": -1, "min_p": 0}`)
	if status != http.StatusOK {
		t.Errorf("%d: %s", status, text)
	}
}

// If one prompt of a request is rejected, no other is computed.
func TestRejectedInPart(t *testing.T) {
	s, url, end := running(t, small())
	status, text := post(t, url+"/v1/completions", `{"prompt": ["a", "`+strings.Repeat("b", 300)+`"], "max_tokens": 9}`)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if status != http.StatusBadRequest || s.engine.Counters().Generated != 0 || s.engine.InFlight() != 0 ||
		len(s.queues) != 0 {
		t.Errorf("%d %s: %d tokens drawn, %d in flight, %d queues", status, text, s.engine.Counters().Generated,
			s.engine.InFlight(),
			len(s.queues))
	}
}

// Every body is rejected with a message of one line or parsed to a valid request.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{`{"prompt":"a","n":2,"seed":1,"stop":["x"],"stream":true,` +
		`"stream_options":{"include_usage":true}}`, `{"prompt":[[1,2],"b"],"logprobs":3,"stop_token_ids":[4]}`,
		`{"prompt":[[320]]}`, `{"prompt":"a","stop_token_ids":[320]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"tools":[{"type":"function"}],` +
			`"max_completion_tokens":3,"logprobs":true,"logit_bias":{"3":-100},"min_p":0.1}`} {
		f.Add([]byte(s))
	}
	tok, err := data.NewChatTokenizer("bytes")
	if err != nil {
		f.Fatal(err)
	}
	s := &Server{options: small(), served: &serve.ServedModel{
		Ranks: serve.Ranks{Model: &model.Model{Vocab: 320, MaxLength: 256}}, Tokenizer: tok}}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, read := range []func(*fields) (*samplingRequest, error){s.parseCompletion, s.parseChatCompletion} {
			form, err := newFields(context.Background(), body)
			var a *samplingRequest
			if err == nil {
				a, err = read(form)
			}
			if err != nil {
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("several lines: %q", err)
				}
				continue
			}
			if wrong := invalid(s, a); wrong != "" {
				t.Errorf("%q is parsed to %+v: %s", body, a, wrong)
			}
		}
	})
}

// invalid names a part of a parsed request that breaks its bounds; "": none.
func invalid(s *Server, a *samplingRequest) string {
	q, vocab := a.sample, int32(s.served.Model.Vocab)
	outside := func(ids []int32) bool {
		return slices.ContainsFunc(ids, func(id int32) bool { return id < 0 || id >= vocab })
	}
	switch {
	case a.n < 1 || len(a.prompts) == 0 || a.n*len(a.prompts) > maxSamples:
		return "samples"
	case slices.ContainsFunc(a.prompts, outside) || outside(q.Stop):
		return "tokens outside the vocabulary"
	case q.MaxTokens < 0 || a.fill && q.MaxTokens > 0 || q.MaxTokens == 0 && !a.fill && !q.PromptLogProbs:
		return "max_tokens"
	case !(q.Temperature >= 0 && q.Temperature <= 100) || !(q.TopP >= 0 && q.TopP <= 1) || q.TopK < 0:
		return "sampling"
	case !(q.Adjust.MinP >= 0 && q.Adjust.MinP <= 1) || len(q.Adjust.Bias) > maxBiases:
		return "adjustments"
	case q.TopLogProbs < 0 || q.TopLogProbs > maxTopLogProbs || q.TopLogProbs > 0 && !a.logprobs:
		return "logprobs"
	case slices.Contains(a.stops, ""):
		return "stop"
	}
	return ""
}
