package api

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"lockstep/serve"
)

// Options configure a server.
type Options struct {
	Name   string // the model's name in requests and responses
	Key    string // API key that clients must send; "": none
	Seed   uint64 // of requests without a seed
	Engine serve.Options
}

// Server answers HTTP requests with an engine on each rank.
type Server struct {
	options    Options
	served     *serve.ServedModel
	engine     *serve.Replicas
	definition string // digest
	started    time.Time
	calls      chan func() // run by the engine's goroutine between two steps

	// The engine's goroutine alone uses these.
	queues    map[int]*outputQueue // of samples in flight, by their index in the engine
	nextIndex int                  // of the next sample
}

// New makes a server with engines of its own.
func New(m *serve.ServedModel, o Options) (*Server, error) {
	e, err := m.NewEngines(o.Engine)
	if err != nil {
		return nil, err
	}
	e.Steps = 1 // clients wait for tokens
	return &Server{
		options: o, served: m, engine: e, definition: m.Rank.Dev.Definition().Digest(), started: time.Now(),
		calls: make(chan func()), queues: map[int]*outputQueue{},
	}, nil
}

// Run serves clients of l until ctx ends, then finishes the requests in flight. It runs the engines in the calling
// goroutine, which must be the first rank's.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	h := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	end := sync.OnceFunc(func() { close(done) })
	failed := make(chan error, 2)
	go func() {
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("HTTP: %w", err)
			end()
		}
	}()
	stop := context.AfterFunc(ctx, func() {
		failed <- h.Shutdown(context.Background())
		end()
	})
	defer stop()
	s.runEngine(done)
	return <-failed
}

// Handler routes requests to the endpoints. Requests wait until Run is called.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", s.completions)
	mux.HandleFunc("POST /v1/chat/completions", s.chatCompletions)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("POST /detokenize", s.detokenize)
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &apiError{status: http.StatusNotFound, message: fmt.Sprintf(
			"no endpoint %s %s: see lockstep serve --help", r.Method, r.URL.Path)})
	})
	return s.authenticate(mux)
}

// authenticate requires the API key, where there is one, of every endpoint but /health.
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, got := "Bearer "+s.options.Key, r.Header.Get("Authorization")
		if s.options.Key != "" && r.URL.Path != "/health" && !equalInConstantTime(got, want) {
			writeError(w, &apiError{status: http.StatusUnauthorized,
				message: "send the header Authorization: Bearer KEY with the server's API key"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func equalInConstantTime(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}
