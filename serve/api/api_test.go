package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/serve"
)

const golden = "../../model/testdata/qwen3_moe"

// onRank runs body with a tiny model that speaks in bytes.
func onRank(body func(r *parallel.Rank, m *serve.Served) error) error {
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()
	return parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		m, err := serve.Open(dev, golden, "", model.Options{DType: kernels.F32})
		if err != nil {
			return err
		}
		if m.Language, err = data.NewLanguage("bytes"); err != nil {
			return err
		}
		return body(r, m)
	})
}

// running is a server with its address; end stops it and returns what it returned.
func running(t testing.TB, o Options) (s *Server, url string, end func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	made, over := make(chan *Server, 1), make(chan error, 1)
	go func() {
		over <- onRank(func(r *parallel.Rank, m *serve.Served) error {
			s, err := New(r, m, o)
			if err != nil {
				return err
			}
			made <- s
			return s.Run(ctx, l)
		})
	}()
	end = sync.OnceValue(func() error { cancel(); return <-over })
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	select {
	case s = <-made:
	case err := <-over:
		t.Fatal(err)
	}
	return s, "http://" + l.Addr().String(), end
}

func small() Options {
	return Options{Name: "tiny", Seed: 1, Engine: serve.Options{Slots: 8, PageRows: 16, Pages: 17, PrefillRows: 24}}
}

// post sends a body, a string as it is.
func post(t *testing.T, url string, body any) (int, []byte) {
	t.Helper()
	text, err := []byte(nil), error(nil)
	if raw, ok := body.(string); ok {
		text = []byte(raw)
	} else if text, err = json.Marshal(body); err != nil {
		t.Fatal(err)
	}
	res, err := http.Post(url, "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, got
}

func decode[T any](t *testing.T, text []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// events are the data lines of a stream.
func events(t *testing.T, text []byte) (all [][]byte) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if line, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			all = append(all, bytes.Clone(line))
		} else if len(lines.Bytes()) > 0 {
			t.Errorf("a line of a stream: %q", lines.Text())
		}
	}
	if n := len(all); n == 0 || string(all[n-1]) != "[DONE]" {
		t.Fatalf("the stream does not end with [DONE]: %q", text)
	}
	return all[:len(all)-1]
}

// traffic is random completions with a seed each.
func traffic(n int) (asks []map[string]any) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		prompt := make([]int32, 1+rng.IntN(40))
		for j := range prompt {
			prompt[j] = int32(3 + rng.IntN(250))
		}
		asks = append(asks, map[string]any{
			"prompt": prompt, "max_tokens": 1 + rng.IntN(90), "n": 1 + rng.IntN(3), "seed": i, "temperature": 0.5 +
				rng.Float64(), "top_p": 0.5 + rng.Float64()/2,
			"logprobs": rng.IntN(3), "return_token_ids": true, "ignore_eos": rng.IntN(2) == 0, "stream": rng.IntN(2) ==
				0,
		})
	}
	return asks
}

// alone is what an engine that does nothing else draws for an ask.
func alone(t *testing.T, asks []map[string]any) (results [][]serve.Result) {
	t.Helper()
	err := onRank(func(r *parallel.Rank, m *serve.Served) error {
		e, err := serve.NewEngine(r, m.Model, kernels.NewArena(r.Dev), serve.Options{Slots: 1, PageRows: 64,
			PrefillRows: 1000})
		if err != nil {
			return err
		}
		for _, a := range asks {
			var all []serve.Result
			for i := range a["n"].(int) {
				q := serve.Request{
					ID: uint64(i), Prompt: a["prompt"].([]int32), MaxTokens: a["max_tokens"].(int),
					Seed: uint64(a["seed"].(int)), Temperature: float32(a["temperature"].(float64)),
					TopP: float32(a["top_p"].(float64)),
				}
				if !a["ignore_eos"].(bool) {
					q.Stop = m.Stops()
				}
				res, err := e.Run(context.Background(), []serve.Request{q})
				if err != nil {
					return err
				}
				all = append(all, res[0])
			}
			results = append(results, all)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// joined is a streamed or whole completion as ids and log-probabilities of each choice.
func joined(t *testing.T, a map[string]any, text []byte) []serve.Result {
	t.Helper()
	bodies := [][]byte{text}
	if a["stream"].(bool) {
		bodies = events(t, text)
	}
	all := make([]serve.Result, a["n"].(int))
	for _, b := range bodies {
		for _, c := range decode[textBody](t, b).Choices {
			all[c.Index].IDs, all[c.Index].LogProbs = append(all[c.Index].IDs, c.IDs...), append(all[c.Index].LogProbs,
				c.LogProbs.LogProbs...)
			if c.Finish != nil {
				all[c.Index].Finish = *c.Finish
			}
		}
	}
	return all
}

// Whatever else the server does at the time, and however small its cache, a client gets on every bit what an engine
// alone would draw.
func TestSameBits(t *testing.T) {
	asks := traffic(20)
	want := alone(t, asks)
	s, url, end := running(t, small())
	got := make([][]serve.Result, len(asks))
	var all sync.WaitGroup
	for i, a := range asks {
		all.Go(func() {
			status, text := post(t, url+"/v1/completions", a)
			if status != http.StatusOK {
				t.Errorf("%d: %s", status, text)
				return
			}
			got[i] = joined(t, a, text)
		})
	}
	all.Wait()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	for i := range asks {
		for k, w := range want[i] {
			g := got[i][k]
			if !slices.Equal(g.IDs, w.IDs) || !slices.Equal(g.LogProbs, w.LogProbs) || g.Finish != w.Finish {
				t.Errorf("request %d, sample %d: %v %v %s, alone %v %v %s", i, k, g.IDs, g.LogProbs, g.Finish, w.IDs,
					w.LogProbs, w.Finish)
			}
		}
	}
	if s.engine.Preempted == 0 || s.engine.InFlight() != 0 || len(s.feeds) != 0 {
		t.Errorf("%d preemptions (want some), %d in flight, %d feeds", s.engine.Preempted, s.engine.InFlight(),
			len(s.feeds))
	}
}

// The samples of a prompt differ, requests without a seed differ, those with one do not.
func TestSeeds(t *testing.T) {
	_, url, _ := running(t, small())
	ask := func(more string) (texts []string) {
		status, text := post(t, url+"/v1/completions",
			`{"prompt": "hello", "n": 4, "max_tokens": 20, "ignore_eos": true`+more+`}`)
		if status != http.StatusOK {
			t.Fatalf("%d: %s", status, text)
		}
		for _, c := range decode[textBody](t, text).Choices {
			texts = append(texts, c.Text)
		}
		return texts
	}
	seeded, again, other, free, freer := ask(`, "seed": -7`), ask(`, "seed": -7`), ask(`, "seed": 8`), ask(""), ask("")
	if !slices.Equal(seeded, again) {
		t.Errorf("one seed, two answers: %q and %q", seeded, again)
	}
	all := slices.Concat(seeded, other, free, freer)
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != 16 {
		t.Errorf("%d different samples of 16", n)
	}
}

func TestChat(t *testing.T) {
	_, url, _ := running(t, small())
	body := map[string]any{
		"model": "tiny", "messages": []map[string]string{{"role": "user", "content": "hé"}}, "max_tokens": 12,
		"seed": 5, "n": 2, "logprobs": true, "top_logprobs": 2, "return_token_ids": true, "user": "me",
	}
	status, text := post(t, url+"/v1/chat/completions", body)
	if status != http.StatusOK {
		t.Fatalf("%d: %s", status, text)
	}
	whole := decode[talkBody](t, text)
	for _, c := range whole.Choices {
		if n := len(c.IDs); n == 0 || n > 12 || n < 12 && *c.Finish != serve.FinishStop || n == 12 && *c.Finish == "" {
			t.Errorf("%d tokens of at most 12, then %q", n, *c.Finish)
		}
	}
	if len(whole.Choices) != 2 || whole.Object != "chat.completion" || whole.Usage.Prompt != len(whole.PromptIDs) ||
		whole.Usage.Total != whole.Usage.Prompt+whole.Usage.Completion {
		t.Errorf("%s", text)
	}
	for _, c := range whole.Choices {
		if c.Message.Role != "assistant" || len(c.LogProbs.Content) != len(c.IDs) || len(c.LogProbs.Content[0].Top) !=
			2 {
			t.Errorf("%s", text)
		}
	}
	body["stream"], body["stream_options"] = true, map[string]bool{"include_usage": true}
	_, text = post(t, url+"/v1/chat/completions", body)
	contents, roles, parts := make([]string, 2), 0, events(t, text)
	for i, e := range parts {
		b := decode[talkBody](t, e)
		if b.Object != "chat.completion.chunk" || (b.Usage != nil) != (i == len(parts)-1) {
			t.Errorf("chunk %d: %s", i, e)
		}
		for _, c := range b.Choices {
			contents[c.Index] += *c.Delta.Content
			if c.Delta.Role != "" {
				roles++
			}
		}
	}
	if roles != 2 || contents[0] != *whole.Choices[0].Message.Content ||
		contents[1] != *whole.Choices[1].Message.Content {
		t.Errorf("%d roles, %q, in one piece %s", roles, contents, text)
	}
	// Without a bound there is room for all positions.
	_, text = post(t, url+"/v1/chat/completions",
		`{"messages": [{"role": "user", "content": "x"}], "ignore_eos": true}`)
	if b := decode[talkBody](t, text); b.Usage.Total != 256 || *b.Choices[0].Finish != serve.FinishLength {
		t.Errorf("%s", text)
	}
}

// The likeliest tokens that a client is told of are those of each place: greedy answers are the first of them all.
func TestLikelyOfEachToken(t *testing.T) {
	_, url, _ := running(t, small())
	_, text := post(t, url+"/v1/completions",
		`{"prompt": "hello", "max_tokens": 20, "ignore_eos": true, "temperature": 0, "logprobs": 2}`)
	l := decode[textBody](t, text).Choices[0].LogProbs
	if len(l.Top) != 20 {
		t.Fatalf("%d lists for 20 tokens", len(l.Top))
	}
	for i, top := range l.Top {
		own, ok := top[l.Tokens[i]]
		if !ok || own != l.LogProbs[i] {
			t.Errorf("token %d, %q with %v, is not in its list %v", i, l.Tokens[i], l.LogProbs[i], top)
		}
		for token, logprob := range top {
			if logprob > own {
				t.Errorf("at token %d, %q with %v is likelier than what was drawn with %v", i, token, logprob, own)
			}
		}
	}
}

// A client that leaves takes its samples out of the batch; the others go on.
func TestClientLeaves(t *testing.T) {
	s, url, end := running(t, small())
	ctx, leave := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions",
		strings.NewReader(`{"prompt": "a", "n": 3, "max_tokens": 250, "ignore_eos": true, "stream": true}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := res.Body.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	leave()
	res.Body.Close()
	if status, text := post(t, url+"/v1/completions",
		`{"prompt": "b", "max_tokens": 200, "ignore_eos": true}`); status != http.StatusOK ||
		decode[textBody](t, text).Usage.Completion != 200 {
		t.Errorf("%d: %s", status, text)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if s.engine.Cancelled != 3 || s.engine.InFlight() != 0 || len(s.feeds) != 0 {
		t.Errorf("%d cancelled, %d in flight, %d feeds", s.engine.Cancelled, s.engine.InFlight(), len(s.feeds))
	}
}

// Who is being served when the server ends gets the whole answer.
func TestEnds(t *testing.T) {
	_, url, end := running(t, small())
	res, err := http.Post(url+"/v1/completions", "", strings.NewReader(`{"prompt": "a", "max_tokens": 200, `+
		`"ignore_eos": true, "stream": true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	over := make(chan error)
	go func() { over <- end() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	events(t, text)
	select {
	case err := <-over:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the server does not end")
	}
	if _, err := http.Get(url + "/health"); err == nil {
		t.Error("the server still answers")
	}
}

func TestFacts(t *testing.T) {
	o := small()
	o.Key = "secret"
	_, url, _ := running(t, o)
	get := func(path, key string) (int, string) {
		req, err := http.NewRequest(http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
	for _, c := range []struct {
		path, key string
		status    int
		want      string
	}{
		{"/health", "", 200, `"ok"`},
		{"/v1/models", "", 401, "Bearer"},
		{"/v1/models", "wrong", 401, "Bearer"},
		{"/v1/models", "secret", 200, `"id":"tiny"`},
		{"/metrics", "secret", 200, "lockstep_requests_running 0\n"},
		{"/v2", "secret", 404, "no GET /v2"},
	} {
		if status, text := get(c.path, c.key); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s with key %q: %d %s", c.path, c.key, status, text)
		}
	}
}

func TestTokens(t *testing.T) {
	_, url, _ := running(t, small())
	_, text := post(t, url+"/tokenize", map[string]any{"prompt": "hé", "model": "tiny"})
	got := decode[struct{ Tokens []int32 }](t, text)
	if len(got.Tokens) != 3 {
		t.Errorf("%s", text)
	}
	if _, text = post(t, url+"/detokenize", map[string]any{"tokens": got.Tokens}); decode[map[string]string](t,
		text)["prompt"] != "hé" {
		t.Errorf("%s", text)
	}
	if status, text := post(t, url+"/tokenize", `{"messages": [{"role": "user", "content": "x"}]}`); status != 200 ||
		!strings.Contains(string(text), `"count":`) {
		t.Errorf("%d %s", status, text)
	}
}

func TestRefused(t *testing.T) {
	_, url, _ := running(t, small())
	chat := func(more string) string { return `{"messages": [{"role": "user", "content": "x"}]` + more + `}` }
	for _, c := range []struct {
		path, body string
		status     int
		want       string // of the message
	}{
		{"completions", `{"prompt": "a"`, 400, "no JSON"},
		{"completions", `[1]`, 400, "no JSON object"},
		{"completions", `{"promt": "a"}`, 400, `"promt": this server knows no such field`},
		{"completions", `{}`, 400, "prompt: want"},
		{"completions", `{"prompt": []}`, 400, "prompt: want"},
		{"completions", `{"prompt": ""}`, 400, "no tokens"},
		{"completions", `{"prompt": [1, 2.5]}`, 400, "prompt: want a list of token ids"},
		{"completions", `{"prompt": [[1], "a", {}]}`, 400, "prompt: want"},
		{"completions", `{"prompt": [3, 320]}`, 400, "the vocabulary has 320"},
		{"completions", `{"prompt": "a", "max_tokens": 0}`, 400, "max_tokens: want a whole number from 1"},
		{"completions", `{"prompt": "a", "temperature": -1}`, 400, "temperature: want a number from 0"},
		{"completions", `{"prompt": "a", "temperature": "hot"}`, 400, "temperature: want a number"},
		{"completions", `{"prompt": "a", "top_p": 0}`, 400, "top-p"},
		{"completions", `{"prompt": "a", "n": 2000}`, 400, "n: want"},
		{"completions", `{"prompt": ["a", "b"], "n": 1000}`, 400, "want at most 1024"},
		{"completions", `{"prompt": "a", "stop": ["x", ""]}`, 400, "stop: want texts"},
		{"completions", `{"prompt": "a", "stop": 3}`, 400, "stop: want a string"},
		{"completions", `{"prompt": "a", "logprobs": 21}`, 400, "logprobs: want"},
		{"completions", `{"prompt": "a", "echo": true}`, 400, "echo"},
		{"completions", `{"prompt": "a", "best_of": 2}`, 400, "best_of"},
		{"completions", `{"prompt": "a", "frequency_penalty": 0.5}`, 400, "penalties"},
		{"completions", `{"prompt": "a", "logit_bias": {"3": 1}}`, 400, "biases"},
		{"completions", `{"prompt": "a", "model": "other"}`, 404, "this server has tiny"},
		{"completions", `{"prompt": "a", "stream_options": {"x": 1}}`, 400, "stream_options"},
		{"completions", `{"prompt": "` + strings.Repeat("a", 300) + `"}`, 400,
			"the prompt has 300 tokens and the model 256"},
		{"chat/completions", `{}`, 400, "messages: want"},
		{"chat/completions", `{"messages": []}`, 400, "messages"},
		{"chat/completions", `{"messages": [{"role": "king", "content": "x"}]}`, 400, "king"},
		{"chat/completions", chat(`, "top_logprobs": 2`), 400, "give logprobs too"},
		{"chat/completions", chat(`, "tool_choice": "required"`), 400, "tool"},
		{"chat/completions", chat(`, "response_format": {"type": "json_object"}`), 400, "format"},
		{"chat/completions", chat(`, "prompt": "a"`), 400, "no such field"},
	} {
		status, text := post(t, url+"/v1/"+c.path, c.body)
		message := decode[struct{ Error struct{ Message string } }](t, text).Error.Message
		if status != c.status || !strings.Contains(message, c.want) || strings.Contains(message, "\n") {
			t.Errorf("%.80s: %d %s, want %d and %q", c.body, status, text, c.status, c.want)
		}
	}
	// Neutral values of what is not supported pass.
	status, text := post(t, url+"/v1/completions", `{"prompt": "a", "frequency_penalty": 0, "presence_penalty": 0.0, `+
		`"logit_bias": {}, "best_of": 1, "echo": false, "suffix": null, "top_k": -1, "min_p": 0}`)
	if status != http.StatusOK {
		t.Errorf("%d: %s", status, text)
	}
}

// Where one prompt of a request is refused, none of the others is computed.
func TestRefusedInPart(t *testing.T) {
	s, url, end := running(t, small())
	status, text := post(t, url+"/v1/completions", `{"prompt": ["a", "`+strings.Repeat("b", 300)+`"], "max_tokens": 9}`)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if status != http.StatusBadRequest || s.engine.Drawn != 0 || s.engine.InFlight() != 0 || len(s.feeds) != 0 {
		t.Errorf("%d %s: %d tokens drawn, %d in flight, %d feeds", status, text, s.engine.Drawn, s.engine.InFlight(),
			len(s.feeds))
	}
}

// Whatever the body, it is refused in one line or asks for samples that name tokens.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{`{"prompt":"a","n":2,"seed":1,"stop":["x"],"stream":true,` +
		`"stream_options":{"include_usage":true}}`, `{"prompt":[[1,2],"b"],"logprobs":3,"stop_token_ids":[4]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"tools":[{"type":"function"}],` +
			`"max_completion_tokens":3,"logprobs":true}`} {
		f.Add([]byte(s))
	}
	lang, err := data.NewLanguage("bytes")
	if err != nil {
		f.Fatal(err)
	}
	s := &Server{o: small(), served: &serve.Served{Model: &model.Model{Vocab: 320, MaxLength: 256}, Language: lang}}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, read := range []func(*form) (*ask, error){s.completion, s.conversation} {
			r, err := http.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			form, err := readForm(nil, r)
			var a *ask
			if err == nil {
				a, err = read(form)
			}
			if err != nil {
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("several lines: %q", err)
				}
				continue
			}
			if wrong := consistent(s, a); wrong != "" {
				t.Errorf("%q asks for %+v: %s", body, a, wrong)
			}
		}
	})
}
