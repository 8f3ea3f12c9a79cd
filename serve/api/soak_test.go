package api

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var soakTime = flag.Duration("soak", 2*time.Second, "how long TestSoak sends requests")

// hostileBodies are mistakes and attacks; each is answered at once with an error of the client.
func hostileBodies() []string {
	deep := func(open, end string) string { return strings.Repeat(open, 100_000) + strings.Repeat(end, 100_000) }
	ask := func(field string) string { return `{"prompt": "a", "max_tokens": 1, ` + field + `}` }
	return []string{
		"", "null", "[]", "{", `{"prompt": "a"`, `{"prompt": "a"}}`, "\xff\xfe{}", deep("[", "]"), deep(`{"a":`, "}"),
		`{"prompt": ` + deep("[", "]") + `}`, `{"prompt": null}`, `{"prompt": []}`, `{"prompt": [[]]}`, `{"prompt": 7}`,
		`{"prompt": ["a", 7, {}]}`, `{"prompt": [-1]}`, `{"prompt": [4294967301]}`, `{"prompt": [1.5]}`,
		`{"prompt": "` + strings.Repeat("a", 1<<20) + `"}`, `{"prompt": "\ud800"}`, "{\"prompt\": \"\xc3\x28\"}",
		ask(`"max_tokens": -1`), ask(`"n": 0`), ask(`"n": 9223372036854775807`), ask(`"seed": 1e999`),
		ask(`"temperature": -1`), ask(`"temperature": "hot"`), ask(`"top_p": 0`), ask(`"top_k": 1e99`),
		ask(`"logprobs": 21`), ask(`"stop": [1]`), ask(`"stop": [""]`), ask(`"stop": ` + deep("[", "]")),
		ask(`"stop_token_ids": [[1]]`), ask(`"n": 1e300`),
		ask(`"stream": "yes"`), ask(`"stream_options": 3`), ask(`"logit_bias": {"1": 500}`), ask(`"echo": 1`),
		ask(`"\u0000": 1`), ask(`"prompt ": 1`), ask(`"model": "` + strings.Repeat("x", 1000) + `"`),
		`{"prompt": [` + strings.Repeat("5,", 1<<20) + `5]}`, `{"prompt": [` + strings.Repeat(`"a",`, 1024) + `"a"]}`,
	}
}

// A server that good clients, clients that leave and hostile ones use at the same time gives the good ones what they
// get alone, stays as large as it is, and leaves nothing running.
func TestSoak(t *testing.T) {
	requests := traffic(40)
	want := alone(t, requests)
	base := runtime.NumGoroutine()
	s, url, end := running(t, small())
	ctx, stop := context.WithTimeout(context.Background(), *soakTime)
	defer stop()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	var good, left, hostile atomic.Int64
	bodies := hostileBodies()
	var all sync.WaitGroup
	each := func(workers int, work func(rng *rand.Rand)) {
		for i := range workers {
			all.Go(func() {
				for rng := rand.New(rand.NewPCG(uint64(i), 7)); ctx.Err() == nil && !t.Failed(); {
					work(rng)
				}
			})
		}
	}
	each(6, func(rng *rand.Rand) {
		i := rng.IntN(len(requests))
		status, text := post(t, url+"/v1/completions", requests[i])
		if status != http.StatusOK {
			t.Errorf("%d: %s", status, text)
			return
		}
		for k, g := range joined(t, requests[i], text) {
			w := want[i][k]
			if !slices.Equal(g.IDs, w.IDs) || !slices.Equal(g.LogProbs, w.LogProbs) || g.Finish != w.Finish {
				t.Errorf("request %d, sample %d: %v %s, alone %v %s", i, k, g.IDs, g.Finish, w.IDs, w.Finish)
			}
		}
		good.Add(1)
	})
	each(3, func(rng *rand.Rand) {
		leave(t, client, url, rng)
		left.Add(1)
	})
	each(2, func(rng *rand.Rand) {
		began, used, body := time.Now(), busy(t), bodies[rng.IntN(len(bodies))]
		status, text := post(t, url+"/v1/completions", body)
		took := time.Since(began)
		slow := took > 5*time.Second && busy(t)-used > 5*time.Second || took > 2*time.Minute
		if status < 400 || status >= 500 || slow || len(text) > 2000 {
			t.Errorf("%.80q: %d after %v: %.300s", body, status, took, text)
		}
		hostile.Add(1)
	})
	each(1, func(*rand.Rand) { // an unfinished body
		c := raw(t, url, unfinished)
		time.Sleep(50 * time.Millisecond)
		c.Close()
	})
	time.Sleep(*soakTime / 4)
	early := resident(t)
	all.Wait()
	if late := resident(t); late > early+early/4+(64<<20) {
		t.Errorf("the process grew from %d to %d MiB", early>>20, late>>20)
	}
	idle := func() bool { return s.waitingSamples()+s.engine.InFlight()+len(s.queues) == 0 }
	none := false
	for range 1000 {
		if err := s.betweenSteps(context.Background(), func() { none = idle() }); err != nil || none {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !none {
		t.Error("samples of clients that left are still there")
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	client.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
	for range 200 {
		if runtime.NumGoroutine() <= base {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > base {
		t.Errorf("%d goroutines, %d before", n, base)
	}
	t.Logf("%d answers, %d clients left, %d hostile bodies", good.Load(), left.Load(), hostile.Load())
	if good.Load() < 10 || left.Load() < 10 || hostile.Load() < 10 {
		t.Error("the test shows little")
	}
}

// leave asks for a stream, and leaves at some moment.
func leave(t *testing.T, client *http.Client, url string, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(40))*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", strings.NewReader(fmt.Sprintf(
		`{"prompt": "abc", "n": %d, "max_tokens": 200, "ignore_eos": true, "stream": %t}`, 1+rng.IntN(20),
		rng.IntN(2) == 0)))
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return // it has left
	}
	defer res.Body.Close()
	io.CopyN(io.Discard, res.Body, rng.Int64N(2000))
}

// busy is how long the process has run on its cores: on a machine that has other work less than the time that passes.
// Where the system does not tell, it is that time.
func busy(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return time.Since(started)
	}
	_, after, _ := strings.Cut(string(text), ") ") // the name may have blanks
	fields := strings.Fields(after)
	if len(fields) < 13 {
		t.Fatalf("/proc/self/stat: %q", text)
	}
	ticks := 0
	for _, field := range fields[11:13] { // utime and stime, in ticks of 10 ms (proc(5))
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond / time.Duration(runtime.GOMAXPROCS(0))
}

var started = time.Now()

// resident is the memory of the process in bytes, without garbage; 0 where the system does not tell.
func resident(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
