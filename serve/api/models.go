package api

import "net/http"

// models answers GET /v1/models: the one model, its context length and the digest of its definition.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type entry struct {
		ID         string `json:"id"`
		Object     string `json:"object"`
		Created    int64  `json:"created"`
		Owner      string `json:"owned_by"`
		MaxLength  int    `json:"max_model_len"`
		Definition string `json:"definition"`
	}
	writeJSON(w, http.StatusOK, struct {
		Object string  `json:"object"`
		Data   []entry `json:"data"`
	}{"list", []entry{{s.options.Name, "model", s.started.Unix(), "lockstep", s.engine.MaxLength(), s.definition}}})
}
