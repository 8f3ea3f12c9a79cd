package api

import (
	"encoding/json"
	"net/http"
)

// stream tells a request's pieces as they come, as server-sent events.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, a *ask, choices []*choice, ready <-chan struct{},
	v voice, h header) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	control := http.NewResponseController(w)
	send := func(event any) error {
		if event == nil {
			return nil
		}
		line, err := json.Marshal(event)
		if err != nil {
			return err
		}
		if _, err := w.Write(append(append([]byte("data: "), line...), "\n\n"...)); err != nil {
			return err
		}
		return control.Flush()
	}
	opened := make([]bool, len(choices))
	err := s.follow(r, choices, ready, func(c *choice, p piece) error {
		if !opened[c.index] {
			opened[c.index] = true
			if err := send(v.opening(h, c)); err != nil {
				return err
			}
		}
		return send(v.chunk(h, a, c, p))
	})
	if err == nil && a.usage {
		err = send(v.cost(h, cost(a, choices)))
	}
	if err == nil {
		w.Write([]byte("data: [DONE]\n\n")) // whoever left before the last line has all answers
	}
}
