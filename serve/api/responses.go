package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"

	"lockstep/data"
)

// apiError is why a request was rejected.
type apiError struct {
	status  int    // of HTTP
	field   string // of the request; "": none in particular
	code    string // for programs; "": that of the status
	message string
}

func (e *apiError) Error() string { return e.message }

// badRequest is an error with status 400. field may be "".
func badRequest(field, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, field: field, message: data.Shown(fmt.Sprintf(format, args...))}
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

// codes are those of errors that say no more than their status.
var codes = map[int]string{
	http.StatusForbidden: "forbidden", http.StatusNotFound: "not_found",
	http.StatusMethodNotAllowed: "method_not_allowed", http.StatusRequestTimeout: "timeout",
	http.StatusRequestEntityTooLarge: "body_too_large",
	http.StatusUnsupportedMediaType:  "unsupported_media_type", http.StatusTooManyRequests: "rate_limit_exceeded",
	http.StatusInternalServerError: "server_error", http.StatusServiceUnavailable: "unavailable",
	http.StatusGatewayTimeout: "timeout",
}

// writeError sends an error in OpenAI's format. The status is that of an apiError, otherwise 500.
func writeError(w http.ResponseWriter, err error) {
	e := errorOf(err)
	if e.status == http.StatusTooManyRequests || e.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, e.status, errorBody(err))
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
		Code    string  `json:"code"`
	}
	e := errorOf(err)
	b := body{Message: e.message, Type: "invalid_request_error"}
	b.Code = cmp.Or(e.code, codes[e.status], "invalid_request")
	if e.status >= http.StatusInternalServerError {
		b.Type = "server_error"
	}
	if e.field != "" {
		b.Param = &e.field
	}
	return map[string]body{"error": b}
}
