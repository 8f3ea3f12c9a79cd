package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serverOf is a judge over HTTP, with pauses of a millisecond, and n answers whose texts have 0, 1, 2, ... letters.
func serverOf(t *testing.T, retries, parallel, n int, h http.HandlerFunc) (Rewarder, []Answer) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return judgeAt(t, s.URL+"/judge?key=secret", retries, parallel, n)
}

func judgeAt(t *testing.T, address string, retries, parallel, n int) (Rewarder, []Answer) {
	t.Helper()
	q := questionsOf(t, `{"prompt": "p", "answer": "w", "level": 3}`, testOptions())
	o := RewardOptions{Kind: "http", URL: address, Timeout: 5 * time.Second, Retries: retries, Parallel: parallel}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	s := newServer(o)
	s.pause = time.Millisecond
	var answers []Answer
	for i := range n {
		answers = append(answers, q.Answer(0, strings.Repeat("x", i)))
	}
	return newExternal("reward server "+s.name(), parallel, s.judge), answers
}

// lengthsOf answers with the length of each text.
func lengthsOf(t *testing.T, w http.ResponseWriter, r *http.Request) {
	var in struct {
		Items []struct {
			Text, Answer string
			Fields       struct{ Level int }
		}
	}
	err := json.NewDecoder(r.Body).Decode(&in)
	if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" ||
		r.URL.Query().Get("key") != "secret" {
		t.Errorf("request %s %v: %v", r.Method, r.Header, err)
	}
	rewards := []float64{}
	for _, item := range in.Items {
		if item.Answer != "w" || item.Fields.Level != 3 {
			t.Errorf("item %+v", item)
		}
		rewards = append(rewards, float64(len(item.Text)))
	}
	if err := json.NewEncoder(w).Encode(map[string]any{"rewards": rewards, "note": "x"}); err != nil {
		t.Error(err)
	}
}

// Order is kept however a batch is cut, and no more requests run at once than allowed, over all batches.
func TestHTTPOrder(t *testing.T) {
	for _, parallel := range []int{1, 3, 8} {
		var now, most atomic.Int32
		r, answers := serverOf(t, 0, parallel, 100, func(w http.ResponseWriter, r *http.Request) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(5 * time.Millisecond)
			lengthsOf(t, w, r)
			now.Add(-1)
		})
		errs := make(chan error)
		for range 4 {
			go func() {
				got, err := r.Rewards(context.Background(), answers)
				for i, x := range got {
					if x != float64(i) {
						err = fmt.Errorf("%d at once: reward %d is %v", parallel, i, x)
					}
				}
				if err == nil && len(got) != 100 {
					err = fmt.Errorf("%d rewards", len(got))
				}
				errs <- err
			}()
		}
		for range 4 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if n := int(most.Load()); n > parallel || parallel > 1 && n < 2 {
			t.Errorf("%d requests at once, want %d", n, parallel)
		}
	}
}

// What may pass is tried again, so often and no more; what does not is not.
func TestHTTPRetries(t *testing.T) {
	broken := map[string]func(w http.ResponseWriter){
		`answered "503 Service Unavailable": "busy\n"`: func(w http.ResponseWriter) {
			http.Error(w, "busy", http.StatusServiceUnavailable)
		},
		`answered "500 Internal Server Error"`: func(w http.ResponseWriter) { w.WriteHeader(500) },
		`answered "429 Too Many Requests"`:     func(w http.ResponseWriter) { w.WriteHeader(429) },
		"EOF":                                  func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"unexpected EOF": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "{")
		},
	}
	for want, fail := range broken {
		for _, fails := range []int32{0, 1, 3, 4} {
			var calls atomic.Int32
			r, answers := serverOf(t, 3, 1, 5, func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) <= fails {
					fail(w)
					return
				}
				lengthsOf(t, w, r)
			})
			got, err := r.Rewards(context.Background(), answers)
			switch {
			case fails <= 3 && (err != nil || len(got) != 5 || got[4] != 4 || calls.Load() != fails+1):
				t.Errorf("%s: after %d failures %v, %v", want, fails, got, err)
			case fails > 3 && calls.Load() != 4:
				t.Errorf("%s: asked %d times", want, calls.Load())
			case fails > 3:
				wantError(t, "/judge: failed 4 times, the last: "+want, func() error { return err })
			}
		}
	}
}

func TestHTTPFails(t *testing.T) {
	for want, answer := range map[string]func(w http.ResponseWriter){
		`answered "404 Not Found": "no\nsuch"`: func(w http.ResponseWriter) {
			w.WriteHeader(404)
			fmt.Fprint(w, "no\nsuch")
		},
		`answered "302 Found"`: func(w http.ResponseWriter) {
			w.Header().Set("Location", "/")
			w.WriteHeader(302)
		},
		`answered "204 No Content"`:          func(w http.ResponseWriter) { w.WriteHeader(204) },
		`answered "": want {"rewards"`:       func(http.ResponseWriter) {},
		`answered "<html>": want`:            func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") },
		`answered "{}": want`:                func(w http.ResponseWriter) { fmt.Fprint(w, "{}") },
		`answered "{\"rewards\": [NaN, 1]}"`: func(w http.ResponseWriter) { fmt.Fprint(w, `{"rewards": [NaN, 1]}`) },
		`answered "{\"rewards\": [1e999]}"`:  func(w http.ResponseWriter) { fmt.Fprint(w, `{"rewards": [1e999]}`) },
		"rewards[1] is null":                 func(w http.ResponseWriter) { fmt.Fprint(w, `{"rewards": [1, null]}`) },
		"gave 1 rewards for 2 answers":       func(w http.ResponseWriter) { fmt.Fprint(w, `{"rewards": [1]}`) },
		"gave 3 rewards for 2 answers":       func(w http.ResponseWriter) { fmt.Fprint(w, `{"rewards": [1, 2, 3]}`) },
		"answered with more than 67584 bytes": func(w http.ResponseWriter) {
			fmt.Fprint(w, strings.Repeat(" ", 1<<20))
		},
	} {
		var calls atomic.Int32
		r, answers := serverOf(t, 3, 1, 2, func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			answer(w)
		})
		_, err := r.Rewards(context.Background(), answers)
		wantError(t, "/judge: "+want, func() error { return err })
		if strings.Contains(fmt.Sprint(err), "secret") || calls.Load() != 1 {
			t.Errorf("%v after %d requests", err, calls.Load())
		}
	}
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	r, answers := judgeAt(t, s.URL, 1, 1, 1)
	wantError(t, "failed 2 times, the last: dial tcp", func() error {
		_, err := r.Rewards(context.Background(), answers)
		return err
	})
}

// A server that hangs gets the same request again after the time-out, and left at once when the context ends, also
// between two requests.
func TestHTTPTimeout(t *testing.T) {
	var calls atomic.Int32
	hang := make(chan struct{})
	slow := func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		<-hang
	}
	s := httptest.NewServer(http.HandlerFunc(slow))
	defer s.Close()
	defer close(hang)
	o := RewardOptions{Kind: "http", URL: s.URL, Timeout: 500 * time.Millisecond, Retries: 1, Parallel: 1}
	r, err := NewRewarder(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	answers := []Answer{{Text: "a"}}
	wantError(t, "failed 2 times, the last: gave no rewards for 1 answers within 500ms", func() error {
		_, err := r.Rewards(context.Background(), answers)
		return err
	})
	if calls.Load() != 2 {
		t.Errorf("asked %d times", calls.Load())
	}
	o.Timeout = time.Minute
	if r, err = NewRewarder(o, nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	start := time.Now()
	if _, err := r.Rewards(ctx, answers); !errors.Is(err, context.DeadlineExceeded) ||
		time.Since(start) > 20*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func TestHTTPCancelledBetween(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
	defer s.Close()
	j := newServer(RewardOptions{URL: s.URL, Timeout: time.Minute, Retries: 20})
	j.pause = longestPause
	time.AfterFunc(100*time.Millisecond, stop)
	if _, err := newExternal("x", 1, j.judge).Rewards(ctx, []Answer{{}}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestHTTPPauses(t *testing.T) {
	s := newServer(RewardOptions{})
	for try, want := range map[int]time.Duration{1: 250 * time.Millisecond, 2: 500 * time.Millisecond, 3: time.Second,
		5: 4 * time.Second, 6: 8 * time.Second, 7: 8 * time.Second, maxRetries: 8 * time.Second} {
		if got := s.pauseAfter(try); got != want {
			t.Errorf("after request %d a pause of %v, want %v", try, got, want)
		}
	}
}
