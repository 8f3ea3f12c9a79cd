package api

import (
	"crypto/subtle"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// open are the endpoints that need no API key: those that monitors ask.
var open = []string{"/health", "/ready"}

// admit answers the requests that the server does not take from whoever sends them, and passes the others on.
func (s *Server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.refusal(w, r); err != nil {
			writeError(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refusal is why a request is not taken: it is without the API key, or it may be sent by a page in the browser of
// somebody who did not mean to, which is told by Host (DNS rebinding), Origin and Content-Type (cross-site requests).
func (s *Server) refusal(w http.ResponseWriter, r *http.Request) error {
	if s.options.Key == "" && !plainHost(r.Host) {
		return &apiError{status: http.StatusForbidden, message: fmt.Sprintf("without an API key the server is asked "+
			"by its address or as localhost, not as %.200q", r.Host)}
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if !s.allows(origin, r.Host) {
			return &apiError{status: http.StatusForbidden, message: fmt.Sprintf("pages of %.200q may not ask this "+
				"server: see --allow-origin", origin)}
		}
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
		h.Add("Vary", "Origin")
	}
	if r.Method == http.MethodOptions || slices.Contains(open, r.URL.Path) {
		return nil
	}
	got, want := r.Header.Get("Authorization"), "Bearer "+s.options.Key
	if s.options.Key != "" && !equalInConstantTime(got, want) {
		return &apiError{status: http.StatusUnauthorized, code: "invalid_api_key",
			message: "send the header Authorization: Bearer KEY with the server's API key"}
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Method == http.MethodPost && (err != nil || kind != "application/json") {
		return &apiError{status: http.StatusUnsupportedMediaType, message: "send JSON with the header Content-Type: " +
			"application/json"}
	}
	return nil
}

// plainHost tells whether the header Host names a server by an address or as localhost. Another name may be one that
// somebody else lets point here.
func plainHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil
}

// allows tells whether pages of an origin may ask the server as host: its own, and those of Options.Origins.
func (s *Server) allows(origin, host string) bool {
	if slices.Contains(s.options.Origins, "*") || slices.Contains(s.options.Origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == host
}

func equalInConstantTime(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}
