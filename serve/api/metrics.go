package api

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"lockstep/serve"
)

// measures are what the server measures of responses.
type measures struct {
	mu        sync.Mutex
	responses map[int]int // by status
	first     histogram   // seconds until a request's first token
	each      histogram   // seconds for each token behind the first
	whole     histogram   // seconds of a request for samples
}

func newMeasures() *measures { return &measures{responses: map[int]int{}} }

// buckets are the upper bounds of a histogram's, in seconds; one more has the rest.
var buckets = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}

// histogram counts durations.
type histogram struct {
	counts [len(buckets) + 1]int
	sum    float64
}

func (h *histogram) add(d time.Duration) {
	i, _ := slices.BinarySearch(buckets[:], d.Seconds()) // a bound belongs to its bucket
	h.counts[i]++
	h.sum += d.Seconds()
}

// write writes a histogram in Prometheus' text format.
func (h *histogram) write(w io.Writer, name, help string) {
	fmt.Fprintf(w, "# HELP lockstep_%s %s\n# TYPE lockstep_%s histogram\n", name, help, name)
	n := 0
	for i, bound := range buckets {
		n += h.counts[i]
		fmt.Fprintf(w, "lockstep_%s_bucket{le=\"%g\"} %d\n", name, bound, n)
	}
	n += h.counts[len(buckets)]
	fmt.Fprintf(w, "lockstep_%s_bucket{le=\"+Inf\"} %d\n", name, n)
	fmt.Fprintf(w, "lockstep_%s_sum %g\nlockstep_%s_count %d\n", name, h.sum, name, n)
}

// exchanged is what is noted of a request and its response.
type exchanged struct {
	began              time.Time
	first              time.Time // when the first token came; zero: none has
	prompt, completion int       // tokens
}

type exchangedKey struct{}

// noted is what is noted of a request.
func noted(r *http.Request) *exchanged { return r.Context().Value(exchangedKey{}).(*exchanged) }

// token notes that tokens have come.
func (x *exchanged) token() {
	if x.first.IsZero() {
		x.first = time.Now()
	}
}

// observe measures and logs requests. The log has no prompts and no responses.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchanged{began: time.Now()}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangedKey{}, x)))
		took, status := time.Since(x.began), cmp.Or(w.(*timedWriter).status, http.StatusOK)
		s.measures.add(x, status, took)
		if s.options.Log != nil {
			s.options.Log.Info("request", slog.String("client", r.RemoteAddr), slog.String("method", r.Method),
				slog.String("path", clipped(r.URL.Path)), slog.Int("status", status), slog.Duration("took", took),
				slog.Int("prompt_tokens", x.prompt), slog.Int("completion_tokens", x.completion))
		}
	})
}

// clipped is the beginning of what a client has sent, for a log.
func clipped(text string) string { return text[:min(len(text), 200)] }

func (m *measures) add(x *exchanged, status int, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.responses[status]++
	if x.first.IsZero() {
		return
	}
	m.first.add(x.first.Sub(x.began))
	m.whole.add(took)
	if n := x.completion - 1; n > 0 {
		m.each.add((took - x.first.Sub(x.began)) / time.Duration(n))
	}
}

func (m *measures) write(w io.Writer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprint(w, "# HELP lockstep_responses_total Responses, by HTTP status.\n")
	fmt.Fprint(w, "# TYPE lockstep_responses_total counter\n")
	for _, status := range slices.Sorted(maps.Keys(m.responses)) {
		fmt.Fprintf(w, "lockstep_responses_total{status=\"%d\"} %d\n", status, m.responses[status])
	}
	m.first.write(w, "time_to_first_token_seconds", "From a request to its first token.")
	m.each.write(w, "time_per_output_token_seconds", "For each token of a response behind the first.")
	m.whole.write(w, "request_seconds", "From a request to the end of its response.")
}

// metrics answers GET /metrics in Prometheus' text format.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	var c serve.Counters
	var running, waiting int
	if err := s.betweenSteps(r.Context(), func() {
		c, waiting = s.engine.Counters(), s.engine.Waiting()
		running = s.engine.InFlight() - waiting
		waiting += s.waitingSamples()
		c.Cancelled += s.dropped
	}); err != nil {
		return // the client has left
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, m := range []struct {
		name, kind, help string
		value            int
	}{
		{"requests_running", "gauge", "Samples in the batch.", running},
		{"requests_waiting", "gauge", "Samples waiting to be scheduled.", waiting},
		{"requests_waiting_limit", "gauge", "Samples that may wait.", s.options.Limits.Waiting},
		{"steps_total", "counter", "Forward passes.", c.Steps},
		{"generation_tokens_total", "counter", "Tokens generated.", c.Generated},
		{"prompt_tokens_total", "counter", "Prefill tokens computed, including those of preempted samples.",
			c.Prefilled},
		{"prompt_tokens_cached_total", "counter", "Prefill tokens taken from the prefix cache.", c.Reused},
		{"preemptions_total", "counter", "Preemptions of a sample by older ones.", c.Preempted},
		{"cancelled_total", "counter", "Samples cancelled by a client that left or ended by a stop string.",
			c.Cancelled},
	} {
		fmt.Fprintf(w, "# HELP lockstep_%s %s\n# TYPE lockstep_%s %s\nlockstep_%s %d\n", m.name, m.help, m.name, m.kind,
			m.name, m.value)
	}
	s.measures.write(w)
}
