package api

import "net/http"

// modelEntry is the one model, with its context length and the digest of its definition.
type modelEntry struct {
	ID         string `json:"id"`
	Object     string `json:"object"`
	Created    int64  `json:"created"`
	Owner      string `json:"owned_by"`
	MaxLength  int    `json:"max_model_len"`
	Definition string `json:"definition"`
}

func (s *Server) modelEntry() modelEntry {
	return modelEntry{s.options.Name, "model", s.started.Unix(), "lockstep", s.engine.MaxLength(), s.definition}
}

// models answers GET /v1/models.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Object string       `json:"object"`
		Data   []modelEntry `json:"data"`
	}{"list", []modelEntry{s.modelEntry()}})
}

// model answers GET /v1/models/ID.
func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") != s.options.Name {
		writeError(w, s.otherModel())
		return
	}
	writeJSON(w, http.StatusOK, s.modelEntry())
}

// otherModel is the error of a request for a model that the server does not have.
func (s *Server) otherModel() *apiError {
	return &apiError{status: http.StatusNotFound, field: "model", code: "model_not_found",
		message: "model: this server has " + s.options.Name}
}
