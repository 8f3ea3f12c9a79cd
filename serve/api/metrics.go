package api

import (
	"fmt"
	"net/http"

	"lockstep/serve"
)

// metrics answers GET /metrics: the engine's counters in Prometheus' text format.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	var c serve.Counters
	var running, waiting int
	if err := s.betweenSteps(r.Context(), func() {
		c, waiting = s.engine.Counters(), s.engine.Waiting()
		running = s.engine.InFlight() - waiting
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
}
