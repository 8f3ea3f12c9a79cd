package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// send makes a request with headers, "" for one means that it is not sent, and returns its status and body.
func send(t *testing.T, method, url, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text), res.Header
}

// A page of another site cannot make a browser ask the server, and a method that an endpoint lacks is named.
func TestAccess(t *testing.T) {
	o := small()
	o.Origins = []string{"https://good.example"}
	_, url, _ := running(t, o)
	ask := `{"prompt": "a", "max_tokens": 1}`
	json := []string{"Content-Type", "application/json"}
	with := func(headers ...string) []string { return append(headers, json...) }
	for _, c := range []struct {
		method, path string
		headers      []string
		status       int
		want         string
	}{
		{"POST", "/v1/completions", json, 200, `"usage"`},
		{"POST", "/v1/completions", []string{"Content-Type", "application/json; charset=utf-8"}, 200, `"usage"`},
		{"POST", "/v1/completions", []string{"Content-Type", "text/plain"}, 415, "application/json"},
		{"POST", "/v1/completions", nil, 415, "application/json"},
		{"POST", "/v1/completions", with("Host", "evil.example:8000"), 403, "evil.example"},
		{"POST", "/v1/completions", with("Host", "localhost:8000"), 200, `"usage"`},
		{"POST", "/v1/completions", with("Host", "[::1]:8000"), 200, `"usage"`},
		{"POST", "/v1/completions", with("Origin", "https://evil.example"), 403, "evil.example"},
		{"POST", "/v1/completions", with("Origin", "null"), 403, "null"},
		{"POST", "/v1/completions", with("Origin", "https://good.example"), 200, `"usage"`},
		{"POST", "/v1/completions", with("Origin", url), 200, `"usage"`},
		{"OPTIONS", "/v1/completions", []string{"Origin", "https://good.example"}, 204, ""},
		{"OPTIONS", "/v1/completions", []string{"Origin", "https://evil.example"}, 403, "evil.example"},
		{"GET", "/v1/completions", nil, 405, "takes POST, not GET"},
		{"DELETE", "/v1/models", nil, 405, `"code":"method_not_allowed"`},
		{"GET", "/v1/models/tiny", nil, 200, `"id":"tiny"`},
		{"GET", "/v1/models/other", nil, 404, `"code":"model_not_found"`},
		{"GET", "/health", nil, 200, `"ok"`},
		{"GET", "/ready", nil, 200, `"ready"`},
	} {
		status, text, h := send(t, c.method, url+c.path, ask, c.headers...)
		if status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s %s %q: %d %s, want %d %s", c.method, c.path, c.headers, status, text, c.status, c.want)
		}
		if c.status == 405 && h.Get("Allow") == "" {
			t.Errorf("%s %s does not say what is allowed", c.method, c.path)
		}
		allowed := h.Get("Access-Control-Allow-Origin") == "https://good.example"
		if strings.Contains(fmt.Sprint(c.headers), "good") && !allowed {
			t.Errorf("%s %s: a page that may ask does not get the response: %v", c.method, c.path, h)
		}
	}
}

// A request for many samples does not hold up one for few: both are in the batch after one step.
func TestFairAdmission(t *testing.T) {
	o := small()
	o.Engine.Slots = 2
	s, url, _ := running(t, o)
	many, stop := context.WithCancel(context.Background())
	defer stop()
	req, err := http.NewRequestWithContext(many, "POST", url+"/v1/completions",
		strings.NewReader(`{"prompt": "a", "n": 900, "max_tokens": 40, "ignore_eos": true, "stream": true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	status, text := post(t, url+"/v1/completions", `{"prompt": "b", "max_tokens": 3, "ignore_eos": true, "n": 3}`)
	left := 0
	if err := s.betweenSteps(context.Background(), func() { left = s.waitingSamples() }); err != nil {
		t.Fatal(err)
	}
	if status != http.StatusOK || left < 800 {
		t.Errorf("%d %s: 3 samples were done when %d of 900 others waited", status, text, left)
	}
}

// More samples than may wait are refused with the time to ask again; those of clients that leave make room.
func TestWaitingLimit(t *testing.T) {
	o := small()
	o.Engine.Slots, o.Limits.Waiting = 1, maxSamples
	s, url, _ := running(t, o)
	long := `{"prompt": "a", "n": 1024, "max_tokens": 200, "ignore_eos": true, "stream": true}`
	ctx, leave := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", strings.NewReader(long))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	status, text, h := send(t, "POST", url+"/v1/completions", long, "Content-Type", "application/json")
	if status != http.StatusTooManyRequests || h.Get("Retry-After") == "" || !strings.Contains(text, "samples wait") {
		t.Errorf("%d %v %s", status, h, text)
	}
	leave()
	res.Body.Close()
	for {
		left := 0
		if err := s.betweenSteps(context.Background(), func() { left = s.waitingSamples() }); err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			break
		}
	}
	if status, text := post(t, url+"/v1/completions", `{"prompt": "b", "max_tokens": 1}`); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	if _, text, _ := send(t, "GET", url+"/metrics", ""); !strings.Contains(text, "lockstep_cancelled_total 1024\n") ||
		!strings.Contains(text, `lockstep_responses_total{status="429"} 1`) {
		t.Errorf("%s", text)
	}
}

// What is more than a request may have is refused with its name.
func TestRequestLimits(t *testing.T) {
	_, url, _ := running(t, small())
	list := func(n int, v string) string { return "[" + strings.TrimSuffix(strings.Repeat(v+",", n), ",") + "]" }
	for _, c := range []struct{ body, want string }{
		{`"stop": ` + list(maxStops+1, `"x"`), "stop: want at most 64 strings of at most 1024 bytes"},
		{`"stop": "` + strings.Repeat("x", maxStopBytes+1) + `"`, "stop: want at most"},
		{`"stop_token_ids": ` + list(maxStopIDs+1, "7"), "stop_token_ids: want at most 1024 ids"},
		{`"user": "` + strings.Repeat("x", maxBody) + `"`, "the body has more than 8388608 bytes"},
	} {
		status, text := post(t, url+"/v1/completions", `{"prompt": "a", "max_tokens": 1, `+c.body+`}`)
		if status < 400 || status >= 500 || !strings.Contains(string(text), c.want) {
			t.Errorf("%.60s: %d %s, want %s", c.body, status, text, c.want)
		}
	}
	if status, text := post(t, url+"/detokenize", `{"tokens": [5, 100000]}`); status != 400 ||
		!strings.Contains(string(text), "token 100000") {
		t.Errorf("%d %s", status, text)
	}
}

// raw opens a connection and writes the beginning of a request.
func raw(t *testing.T, url, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

const unfinished = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
	"Content-Length: 100\r\n\r\n{"

// A body that does not arrive is given up.
func TestSlowBody(t *testing.T) {
	o := small()
	o.Limits.Read = 100 * time.Millisecond
	_, url, _ := running(t, o)
	res, err := http.ReadResponse(bufio.NewReader(raw(t, url, unfinished)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusRequestTimeout ||
		!strings.Contains(string(text), "did not arrive within 100ms") {
		t.Errorf("%d %s, error %v", res.StatusCode, text, err)
	}
}

// A request that takes too long ends with its reason, and its samples with it.
func TestRequestTimeout(t *testing.T) {
	o := small()
	o.Limits.Request = 50 * time.Millisecond
	s, url, _ := running(t, o)
	for _, stream := range []bool{false, true} {
		_, text := post(t, url+"/v1/completions", fmt.Sprintf(
			`{"prompt": "a", "n": 1000, "max_tokens": 200, "ignore_eos": true, "stream": %t}`, stream))
		if !strings.Contains(string(text), errTooLong.message) {
			t.Errorf("stream %t: %.300s", stream, text)
		}
	}
	left := -1
	count := func() { left = s.waitingSamples() + s.engine.InFlight() }
	if err := s.betweenSteps(context.Background(), count); err != nil || left != 0 {
		t.Errorf("%d samples are left, error %v", left, err)
	}
}

// A server that is told to stop waits no longer than it says for a client that never ends its body, for one that never
// reads its stream, and for a long answer.
func TestDrain(t *testing.T) {
	o := small()
	o.Limits.Drain, o.Limits.Write = 200*time.Millisecond, 300*time.Millisecond
	_, url, end := running(t, o)
	raw(t, url, unfinished)
	body := `{"prompt": "a", "n": 1000, "max_tokens": 200, "ignore_eos": true, "stream": true, "logprobs": 20}`
	raw(t, url, fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n\r\n%s", len(body), body))
	var got sync.WaitGroup
	got.Go(func() {
		_, text := post(t, url+"/v1/completions", `{"prompt": "a", "n": 1000, "max_tokens": 200, "ignore_eos": true}`)
		if !strings.Contains(string(text), errStopping.message) {
			t.Errorf("a request that was cut says %.200s", text)
		}
	})
	time.Sleep(300 * time.Millisecond) // they are under way
	began := time.Now()
	if err := end(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the server took %v to stop", took)
	}
	got.Wait()
}

// Bodies share room: one waits until another is parsed, but not for ever.
func TestBodies(t *testing.T) {
	b := newBodies()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	release, err := b.hold(ctx, -1)
	if err != nil {
		t.Fatal(err)
	}
	var refused *apiError
	if _, err := b.hold(ctx, maxBody); !errors.As(err, &refused) || refused.status != http.StatusTooManyRequests {
		t.Errorf("two of the largest bodies at a time: %v", err)
	}
	for range maxBody / smallBody / 2 { // small ones have room of their own
		if _, err := b.hold(context.Background(), smallBody); err != nil {
			t.Fatal(err)
		}
	}
	release()
	if release, err = b.hold(context.Background(), maxBody/2); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.hold(soon, maxBody); !errors.As(err, &refused) { // which gives back the half that it got
		t.Errorf("a body too many: %v", err)
	}
	release()
	if _, err := b.hold(context.Background(), maxBody); err != nil {
		t.Error(err)
	}
}

// Limits are held to what makes sense, with the flag's name.
func TestLimitsValidate(t *testing.T) {
	for want, change := range map[string]func(*Limits){
		"":                  func(*Limits) {},
		"--max-waiting":     func(l *Limits) { l.Waiting = 1023 },
		"--read-timeout":    func(l *Limits) { l.Read = 0 },
		"--write-timeout":   func(l *Limits) { l.Write = -1 },
		"--request-timeout": func(l *Limits) { l.Request = 0 },
		"--drain":           func(l *Limits) { l.Drain = 0 },
	} {
		l := DefaultLimits()
		change(&l)
		err := l.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want+" ") {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// A chunk of a stream has the usage so far where the request asks for it.
func TestChunkUsage(t *testing.T) {
	_, url, _ := running(t, small())
	for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
		ask := `"prompt": "ab"`
		if strings.Contains(path, "chat") {
			ask = `"messages": [{"role": "user", "content": "x"}]`
		}
		_, text := post(t, url+path, `{`+ask+`, "max_tokens": 40, "ignore_eos": true, "stream": true, `+
			`"stream_options": {"continuous_usage_stats": true, "include_usage": true}}`)
		last := 0
		for i, e := range events(t, text) {
			u := decode[struct{ Usage *usage }](t, e).Usage
			if u == nil && i > 0 || u != nil && (u.Completion < last || u.Total != u.Prompt+u.Completion) {
				t.Errorf("%s: chunk %d: %s", path, i, e)
			}
			if u != nil {
				last = u.Completion
			}
		}
		if last != 40 {
			t.Errorf("%s: the last usage has %d tokens", path, last)
		}
	}
}

// A histogram counts each duration in the first bucket that holds it.
func TestHistogram(t *testing.T) {
	var h histogram
	for _, d := range []time.Duration{0, time.Millisecond, 2 * time.Millisecond, time.Hour} {
		h.add(d)
	}
	var text strings.Builder
	h.write(&text, "x", "Help.")
	for _, want := range []string{"# TYPE lockstep_x histogram\n", `lockstep_x_bucket{le="0.001"} 2` + "\n",
		`lockstep_x_bucket{le="0.0025"} 3` + "\n", `lockstep_x_bucket{le="300"} 3` + "\n",
		`lockstep_x_bucket{le="+Inf"} 4` + "\n", "lockstep_x_sum 3600.003\n", "lockstep_x_count 4\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s\nlacks %s", &text, want)
		}
	}
}

// The log has a line for each request, without prompts and responses.
func TestRequestLog(t *testing.T) {
	var log bytes.Buffer
	o := small()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	_, url, end := running(t, o)
	post(t, url+"/v1/completions", `{"prompt": "secret", "max_tokens": 3, "ignore_eos": true}`)
	post(t, url+"/v1/completions", `{"prompt": 7}`)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || strings.Contains(log.String(), "secret") {
		t.Fatalf("%s", &log)
	}
	for i, want := range []string{"status=200", "status=400"} {
		if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], "path=/v1/completions") {
			t.Errorf("%s, want %s", lines[i], want)
		}
	}
	if !strings.Contains(lines[0], "prompt_tokens=6 completion_tokens=3") {
		t.Errorf("%s", lines[0])
	}
}

// The time that a body has to arrive is not that of the response.
func TestBodyDeadline(t *testing.T) {
	o := small()
	o.Limits.Read = 50 * time.Millisecond
	_, url, _ := running(t, o)
	began := time.Now()
	status, text := post(t, url+"/v1/completions", `{"prompt": "a", "n": 16, "max_tokens": 200, "ignore_eos": true}`)
	if took := time.Since(began); status != http.StatusOK || took < 2*o.Limits.Read {
		t.Errorf("%d after %v: %.200s", status, took, text)
	}
}

// TestHealth holds that /health asks the engine: one that hangs does not answer.
func TestHealth(t *testing.T) {
	s, url, _ := running(t, small())
	if status, text, _ := send(t, "GET", url+"/health", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	hangs, end := make(chan struct{}), make(chan struct{})
	ended := make(chan error)
	go func() { ended <- s.betweenSteps(context.Background(), func() { close(hangs); <-end }) }()
	<-hangs
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	w := httptest.NewRecorder()
	s.health(w, httptest.NewRequest("GET", "/health", nil).WithContext(ctx))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "the engine does not answer") {
		t.Errorf("an engine that hangs: %d %s", w.Code, w.Body)
	}
	close(end)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// A server is ready while it takes samples.
func TestReady(t *testing.T) {
	s, url, _ := running(t, small())
	if status, text, _ := send(t, "GET", url+"/ready", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	full := func() { s.options.Limits.Waiting = 0 } // as many as wait
	if err := s.betweenSteps(context.Background(), full); err != nil {
		t.Fatal(err)
	}
	status, text, h := send(t, "GET", url+"/ready", "")
	if status != http.StatusServiceUnavailable || !strings.Contains(text, "wait") || h.Get("Retry-After") == "" {
		t.Errorf("with as many samples as may wait: %d %s", status, text)
	}
	close(s.stopping)
	if status, text, _ := send(t, "GET", url+"/ready", ""); !strings.Contains(text, errStopping.message) {
		t.Errorf("a server that stops: %d %s", status, text)
	}
	s.stopping = make(chan struct{})
}
