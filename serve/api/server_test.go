package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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

// onRank runs body with a tiny model whose tokens are bytes.
func onRank(body func(r *parallel.Rank, m *serve.ServedModel) error) error {
	return onRanks(1, 1, body)
}

// onRanks is onRank with so many ranks, over which experts are divided where experts is as many.
func onRanks(ranks, experts int, body func(r *parallel.Rank, m *serve.ServedModel) error) error {
	var list []kernels.Device
	for range ranks {
		dev, err := cpu.New(kernels.Default(), cpu.Options{})
		if err != nil {
			return err
		}
		defer dev.Close()
		list = append(list, dev)
	}
	w, err := parallel.Open(list, parallel.Mesh{Experts: experts})
	if err != nil {
		return err
	}
	defer w.Close()
	return w.Lead(func(r *parallel.Rank) error {
		m, err := serve.Open(w, r, golden, "", model.Options{DType: kernels.F32, Experts: experts > 1})
		if err != nil {
			return err
		}
		if m.Tokenizer, err = data.NewChatTokenizer("bytes"); err != nil {
			return err
		}
		return body(r, m)
	})
}

// running starts a server and returns its URL; end stops it and returns the result of Run.
// prepare may change the model.
func running(t testing.TB, o Options, prepare ...func(r *parallel.Rank, m *serve.ServedModel)) (s *Server, url string,
	end func() error) {
	t.Helper()
	return runningOn(t, 1, 1, o, prepare...)
}

// runningOn is running on ranks; see onRanks.
func runningOn(t testing.TB, ranks, experts int, o Options, prepare ...func(r *parallel.Rank,
	m *serve.ServedModel)) (s *Server, url string, end func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	made, done := make(chan *Server, 1), make(chan error, 1)
	go func() {
		done <- onRanks(ranks, experts, func(r *parallel.Rank, m *serve.ServedModel) error {
			for _, f := range prepare {
				f(r, m)
			}
			s, err := New(m, o)
			if err != nil {
				return err
			}
			made <- s
			return s.Run(ctx, l)
		})
	}()
	end = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	select {
	case s = <-made:
	case err := <-done:
		t.Fatal(err)
	}
	return s, "http://" + l.Addr().String(), end
}

func small() Options {
	return Options{Name: "tiny", Seed: 1, Limits: DefaultLimits(),
		Engine: serve.Options{Slots: 8, PageRows: 16, Pages: 17, PrefillRows: 24}}
}

// post sends a body: a string as it is, anything else as JSON.
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
			t.Errorf("unexpected line of a stream: %q", lines.Text())
		}
	}
	if n := len(all); n == 0 || string(all[n-1]) != "[DONE]" {
		t.Fatalf("the stream does not end with [DONE]: %q", text)
	}
	return all[:len(all)-1]
}

// traffic makes n random completion requests with a seed each.
func traffic(n int) (requests []map[string]any) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		prompt := make([]int32, 1+rng.IntN(40))
		for j := range prompt {
			prompt[j] = int32(3 + rng.IntN(250))
		}
		requests = append(requests, map[string]any{
			"prompt": prompt, "max_tokens": 1 + rng.IntN(90), "n": 1 + rng.IntN(3), "seed": i,
			"temperature": 0.5 + rng.Float64(), "top_p": 0.5 + rng.Float64()/2,
			"logprobs": rng.IntN(3), "return_token_ids": true, "ignore_eos": rng.IntN(2) == 0,
			"stream": rng.IntN(2) == 0,
		})
	}
	return requests
}

// alone runs each request in an engine by itself.
func alone(t *testing.T, requests []map[string]any) (results [][]serve.Result) {
	t.Helper()
	err := onRank(func(r *parallel.Rank, m *serve.ServedModel) error {
		e, err := serve.NewEngine(r, m.Model, kernels.NewArena(r.Dev), serve.Options{Slots: 1, PageRows: 64,
			PrefillRows: 1000})
		if err != nil {
			return err
		}
		for _, a := range requests {
			var all []serve.Result
			for i := range a["n"].(int) {
				q := serve.Request{
					ID: uint64(i), Prompt: a["prompt"].([]int32), MaxTokens: a["max_tokens"].(int),
					Seed: uint64(a["seed"].(int)), Temperature: float32(a["temperature"].(float64)),
					TopP: float32(a["top_p"].(float64)),
				}
				if !a["ignore_eos"].(bool) {
					q.Stop = m.StopTokens()
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

// joined reads the ids and log-probabilities of each choice from a completion, streamed or not.
func joined(t *testing.T, a map[string]any, text []byte) []serve.Result {
	t.Helper()
	bodies := [][]byte{text}
	if a["stream"].(bool) {
		bodies = events(t, text)
	}
	all := make([]serve.Result, a["n"].(int))
	for _, b := range bodies {
		for _, c := range decode[completionResponse](t, b).Choices {
			res := &all[c.Index]
			res.IDs = append(res.IDs, c.IDs...)
			for _, x := range c.LogProbs.LogProbs {
				res.LogProbs = append(res.LogProbs, *x)
			}
			if c.Finish != nil {
				res.Finish = *c.Finish
			}
		}
	}
	return all
}

// A response has the bits of an engine that runs the request alone, whatever else is in the batch, however small the
// cache is and however many ranks serve.
func TestSameBits(t *testing.T) {
	requests := traffic(20)
	want := alone(t, requests)
	for _, ranks := range [][2]int{{1, 1}, {3, 1}, {2, 2}} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			o := small()
			o.Engine.Pages = max(o.Engine.Pages/(ranks[0]/ranks[1]), 8)
			s, url, end := runningOn(t, ranks[0], ranks[1], o)
			sameBits(t, url, requests, want)
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if c := s.engine.Counters(); c.Preempted == 0 || s.engine.InFlight() != 0 || len(s.queues) != 0 {
				t.Errorf("%d preemptions (want some), %d in flight, %d queues", c.Preempted, s.engine.InFlight(),
					len(s.queues))
			}
		})
	}
}

// sameBits sends requests at once and wants what engines gave that ran each alone.
func sameBits(t *testing.T, url string, requests []map[string]any, want [][]serve.Result) {
	t.Helper()
	got := make([][]serve.Result, len(requests))
	var all sync.WaitGroup
	for i, a := range requests {
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
	for i := range requests {
		for k, w := range want[i] {
			g := got[i][k]
			if !slices.Equal(g.IDs, w.IDs) || !slices.Equal(g.LogProbs, w.LogProbs) || g.Finish != w.Finish {
				t.Errorf("request %d, sample %d: %v %v %s, alone %v %v %s", i, k, g.IDs, g.LogProbs, g.Finish, w.IDs,
					w.LogProbs, w.Finish)
			}
		}
	}
}

// A client that leaves cancels its samples, on whichever rank they are; other requests go on.
func TestClientLeaves(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { clientLeaves(t, ranks) })
	}
}

func clientLeaves(t *testing.T, ranks int) {
	t.Helper()
	s, url, end := runningOn(t, ranks, 1, small())
	ctx, leave := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions",
		strings.NewReader(`{"prompt": ["a", "b", "c"], "max_tokens": 250, "ignore_eos": true, "stream": true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
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
		decode[completionResponse](t, text).Usage.Completion != 200 {
		t.Errorf("%d: %s", status, text)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if c := s.engine.Counters(); c.Cancelled != 3 || s.engine.InFlight() != 0 || len(s.queues) != 0 {
		t.Errorf("%d cancelled, %d in flight, %d queues", c.Cancelled, s.engine.InFlight(), len(s.queues))
	}
}

// A request in flight when the server shuts down gets its whole response.
func TestShutdown(t *testing.T) {
	_, url, end := running(t, small())
	res, err := http.Post(url+"/v1/completions", "application/json",
		strings.NewReader(`{"prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	done := make(chan error)
	go func() { done <- end() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	events(t, text)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the server does not shut down")
	}
	if _, err := http.Get(url + "/health"); err == nil {
		t.Error("the server still responds")
	}
}

// Endpoints require the API key, except /health.
func TestRoutes(t *testing.T) {
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
		{"/v2", "secret", 404, `no endpoint GET \"/v2\"`},
	} {
		if status, text := get(c.path, c.key); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s with key %q: %d %s", c.path, c.key, status, text)
		}
	}
}
