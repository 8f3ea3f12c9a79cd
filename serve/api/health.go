package api

import (
	"context"
	"net/http"
	"time"
)

// patience is how long the engine may take for a step before the server counts as broken: more than any step.
const patience = time.Minute

// health answers GET /health: whether the engine still runs.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if err := s.betweenSteps(ctx, func() {}); err != nil {
		writeError(w, &apiError{status: http.StatusServiceUnavailable, message: "the engine does not answer"})
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// ready answers GET /ready: whether the server takes more samples.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	select {
	case <-s.stopping:
		writeError(w, errStopping)
		return
	default:
	}
	full := false
	look := func() { full = s.waitingSamples() >= s.options.Limits.Waiting }
	if err := s.betweenSteps(r.Context(), look); err != nil {
		return // the client has left
	}
	if full {
		writeError(w, &apiError{status: http.StatusServiceUnavailable, message: "as many samples wait as may"})
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}
