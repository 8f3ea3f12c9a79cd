package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"lockstep/serve"
	"lockstep/serve/api/toolcalls"
)

// Options configure a server.
type Options struct {
	Name    string   // the model's name in requests and responses
	Key     string   // API key that clients must send; "": none
	Origins []string // of web pages that may ask the server, besides its own; "*": all
	Seed    uint64   // of requests without a seed
	Engine  serve.Options
	Limits  Limits
	TLS     *tls.Config  // nil: HTTP
	Log     *slog.Logger // gets a line for each request; nil: none
	// Reasoning: thinking is reasoning_content of a chat completion, not content as the model writes it.
	Reasoning bool
}

// Server answers HTTP requests with an engine on each rank.
type Server struct {
	options    Options
	served     *serve.ServedModel
	tools      toolcalls.Format // of the chat template
	engine     *serve.Replicas
	definition string // digest
	started    time.Time
	bodies     bodies
	measures   *measures
	calls      chan func()   // run by the engine's goroutine between two steps
	ended      chan struct{} // closed when that goroutine has ended
	stopping   chan struct{} // closed when the server takes no more requests

	// The engine's goroutine alone uses these.
	queues    map[int]*outputQueue // of samples in flight, by their index
	nextIndex int                  // of the next sample
	waiting   []*admission         // samples that the engine does not have yet, by request
	dropped   int                  // of these, by clients that left
}

// New makes a server with engines of its own.
func New(m *serve.ServedModel, o Options) (*Server, error) {
	if err := o.Limits.Validate(); err != nil {
		return nil, err
	}
	e, err := m.NewEngines(o.Engine)
	if err != nil {
		return nil, err
	}
	e.Steps = 1 // clients wait for tokens
	format := toolcalls.None
	if tok := m.Tokenizer; tok != nil && tok.Template != nil {
		format = toolcalls.Detect(tok.Template.Mentions)
	}
	return &Server{
		options: o, served: m, tools: format, engine: e, definition: m.Rank.Dev.Definition().Digest(),
		started: time.Now(),
		bodies:  newBodies(), measures: newMeasures(), calls: make(chan func()), ended: make(chan struct{}),
		stopping: make(chan struct{}), queues: map[int]*outputQueue{},
	}, nil
}

// Run serves clients of l until ctx ends, then finishes the requests in flight, for at most Limits.Drain. It runs the
// engines in the calling goroutine, which must be the first rank's.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	base, cut := context.WithCancelCause(context.Background())
	h := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: maxHeader, BaseContext: func(net.Listener) context.Context { return base }}
	if s.options.TLS != nil {
		l = tls.NewListener(l, s.options.TLS)
	}
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
		close(s.stopping)
		failed <- s.drain(h, cut)
		end()
	})
	defer stop()
	s.runEngine(done)
	return <-failed
}

// afterCut is how long requests that are cut have to tell their clients.
const afterCut = 2 * time.Second

// drain waits for the requests in flight, and cuts those that take longer than the server waits.
func (s *Server) drain(h *http.Server, cut context.CancelCauseFunc) error {
	within := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		return h.Shutdown(ctx)
	}
	err := within(s.options.Limits.Drain)
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	cut(errStopping)
	if err = within(afterCut); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return h.Close()
}

// route is an endpoint by its method.
type route struct {
	method, path string
	handle       http.HandlerFunc
}

func (s *Server) routes() []route {
	return []route{
		{http.MethodPost, "/v1/completions", s.completions},
		{http.MethodPost, "/v1/chat/completions", s.chatCompletions},
		{http.MethodGet, "/v1/models", s.models},
		{http.MethodGet, "/v1/models/{id}", s.model},
		{http.MethodPost, "/tokenize", s.tokenize},
		{http.MethodPost, "/detokenize", s.detokenize},
		{http.MethodGet, "/metrics", s.metrics},
		{http.MethodGet, "/health", s.health},
		{http.MethodGet, "/ready", s.ready},
	}
}

// Handler routes requests to the endpoints. Requests wait until Run is called.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, of := range s.routes() {
		mux.HandleFunc(of.path, func(w http.ResponseWriter, r *http.Request) {
			allowed := []string{of.method, http.MethodOptions}
			if of.method == http.MethodGet {
				allowed = append(allowed, http.MethodHead)
			}
			switch {
			case r.Method == http.MethodOptions:
				w.Header().Set("Allow", strings.Join(allowed, ", "))
				w.Header().Set("Access-Control-Allow-Methods", strings.Join(allowed, ", "))
				w.WriteHeader(http.StatusNoContent)
			case !slices.Contains(allowed, r.Method):
				w.Header().Set("Allow", strings.Join(allowed, ", "))
				writeError(w, &apiError{status: http.StatusMethodNotAllowed, message: fmt.Sprintf(
					"%s takes %s, not %s", of.path, of.method, r.Method)})
			default:
				of.handle(w, r)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &apiError{status: http.StatusNotFound, message: fmt.Sprintf(
			"no endpoint %s %.200q: see lockstep serve --help", r.Method, r.URL.Path)})
	})
	return s.limit(s.observe(s.admit(mux)))
}
