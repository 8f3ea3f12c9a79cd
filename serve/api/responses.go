package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
)

// apiError is why a request was rejected.
type apiError struct {
	status  int    // of HTTP
	field   string // of the request; "": none in particular
	message string
}

func (e *apiError) Error() string { return e.message }

// badRequest is an error with status 400. field may be "".
func badRequest(field, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, field: field, message: fmt.Sprintf(format, args...)}
}

// writeJSON sends v as JSON.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // checked before the status is sent
		writeError(w, fmt.Errorf("encode the response: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body.Bytes()) // fails only if the client has left
}

// writeError sends an error in OpenAI's format. The status is that of an apiError, otherwise 500.
func writeError(w http.ResponseWriter, err error) {
	writeJSON(w, errorOf(err).status, errorBody(err))
}

// errorOf is an error with a status.
func errorOf(err error) *apiError {
	e, ok := err.(*apiError)
	if !ok {
		e = &apiError{status: http.StatusInternalServerError, message: err.Error()}
	}
	return e
}

// errorBody is the JSON of an error, of a response or of an event of a stream.
func errorBody(err error) any {
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	e := errorOf(err)
	b := body{Message: e.message, Type: "invalid_request_error", Code: e.status}
	if e.status >= http.StatusInternalServerError {
		b.Type = "server_error"
	}
	if e.field != "" {
		b.Param = &e.field
	}
	return map[string]body{"error": b}
}
