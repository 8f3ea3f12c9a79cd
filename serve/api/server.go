package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/serve"
)

// Options are what a server is told besides its model.
type Options struct {
	Name   string // of the model, to clients
	Key    string // that clients have to give; "": none
	Seed   uint64 // of requests that give none
	Engine serve.Options
}

// Server answers HTTP requests by one engine.
type Server struct {
	o      Options
	served *serve.Served
	engine *serve.Engine
	digest string // of the definition
	born   time.Time
	asked  chan func()
	feeds  map[int]*feed // of requests in flight, by their index in the engine; the loop's own
	next   int           // index of the next request; the loop's own
}

// New makes a server with an engine of its own on rank r.
func New(r *parallel.Rank, m *serve.Served, o Options) (*Server, error) {
	e, err := serve.NewEngine(r, m.Model, kernels.NewArena(r.Dev), o.Engine)
	if err != nil {
		return nil, err
	}
	return &Server{o: o, served: m, engine: e, digest: r.Dev.Definition().Digest(), born: time.Now(),
		asked: make(chan func()), feeds: map[int]*feed{}}, nil
}

// Run serves clients of l until ctx ends and those that are being served then have their answers. It runs the engine in
// the goroutine that calls it, which must be the rank's.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	h := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	over := make(chan struct{})
	ended := sync.OnceFunc(func() { close(over) })
	failed := make(chan error, 2)
	go func() {
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("HTTP: %w", err)
			ended()
		}
	}()
	stop := context.AfterFunc(ctx, func() {
		failed <- h.Shutdown(context.Background())
		ended()
	})
	defer stop()
	s.loop(over)
	return <-failed
}

// Handler is the interface as HTTP; its requests wait until a loop runs.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("POST /v1/completions", s.completions)
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("POST /detokenize", s.detokenize)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, &fault{status: http.StatusNotFound, message: fmt.Sprintf("no %s %s: see lockstep serve --help",
			r.Method, r.URL.Path)})
	})
	return s.guard(mux)
}

// guard wants the key, if there is one, everywhere but at /health.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.o.Key != "" && r.URL.Path != "/health" && !sameKey(r.Header.Get("Authorization"), "Bearer "+s.o.Key) {
			refuse(w, &fault{status: http.StatusUnauthorized, message: "want the header Authorization: Bearer KEY " +
				"with the server's key"})
			return
		}
		next.ServeHTTP(w, r)
	})
}
