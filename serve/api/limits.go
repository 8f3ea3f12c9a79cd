package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Limits bound what clients may ask for and how long they may take.
type Limits struct {
	Waiting int           // samples of all clients that wait for a place in the batch
	Read    time.Duration // of a request's body
	Write   time.Duration // until a client has taken what was sent to it
	Request time.Duration // of a whole request
	Drain   time.Duration // of the requests in flight when the server is to stop
}

// DefaultLimits are those of lockstep serve.
func DefaultLimits() Limits {
	return Limits{Waiting: 2048, Read: 30 * time.Second, Write: 30 * time.Second, Request: time.Hour,
		Drain: 30 * time.Second}
}

// Validate returns an error that names the limit, as the flag of lockstep serve.
func (l Limits) Validate() error {
	if l.Waiting < maxSamples {
		return fmt.Errorf("--max-waiting %d: want at least %d, the samples of one request", l.Waiting, maxSamples)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"read-timeout", l.Read}, {"write-timeout", l.Write}, {"request-timeout", l.Request}, {"drain", l.Drain}} {
		if d.value <= 0 {
			return fmt.Errorf("--%s %v: want more than 0", d.flag, d.value)
		}
	}
	return nil
}

const (
	maxBody   = 8 << 20   // bytes of a request's body: room for a million token ids
	smallBody = 256 << 10 // of one that has not to wait for larger ones
	maxHeader = 64 << 10  // of a request's header
)

// Why the server ends a request before its response is whole.
var (
	errStopping = &apiError{status: http.StatusServiceUnavailable, message: "the server is stopping"}
	errTooLong  = &apiError{status: http.StatusGatewayTimeout, message: "the request takes longer than the server " +
		"allows: ask for fewer tokens or samples"}
)

// ended is why the context of a request has ended; nil where its client has left.
func ended(ctx context.Context) error {
	switch err := context.Cause(ctx); {
	case errors.Is(err, context.DeadlineExceeded):
		return errTooLong
	case errors.Is(err, errStopping):
		return errStopping
	}
	return nil
}

// bodies bounds the bytes of bodies that are read, parsed and rendered at the same time: parsed, they take up to 70
// times as much. Small ones have room of their own.
type bodies struct{ small, large pool }

func newBodies() bodies { return bodies{newPool(maxBody), newPool(maxBody)} }

// hold waits until there is room for a body of so many bytes, -1: unknown. release gives it back.
func (b bodies) hold(ctx context.Context, bytes int64) (release func(), err error) {
	if bytes >= 0 && bytes <= smallBody {
		return b.small.take(ctx, int(bytes))
	}
	if bytes < 0 || bytes > maxBody {
		bytes = maxBody // which is all that is read
	}
	return b.large.take(ctx, int(bytes))
}

// pool is room for bodies, in parts.
type pool struct {
	taker chan struct{} // whoever takes parts, one at a time
	free  chan struct{} // parts
}

const poolPart = 16 << 10

func newPool(bytes int) pool {
	p := pool{make(chan struct{}, 1), make(chan struct{}, bytes/poolPart)}
	p.give(cap(p.free))
	return p
}

func (p pool) give(parts int) {
	for range parts {
		p.free <- struct{}{}
	}
}

func (p pool) take(ctx context.Context, bytes int) (release func(), err error) {
	busy := tooManyRequests("the server has as many request bodies as it takes at a time")
	select {
	case p.taker <- struct{}{}:
		defer func() { <-p.taker }()
	case <-ctx.Done():
		return nil, busy
	}
	parts := min(1+bytes/poolPart, cap(p.free))
	for i := range parts {
		select {
		case <-p.free:
		case <-ctx.Done():
			p.give(i)
			return nil, busy
		}
	}
	return func() { p.give(parts) }, nil
}

// tooManyRequests is an error with status 429: the client may ask again.
func tooManyRequests(format string, args ...any) *apiError {
	return &apiError{status: http.StatusTooManyRequests, message: fmt.Sprintf(format, args...) + ", ask again later"}
}

// readBody reads a request's body, which has to arrive within Limits.Read.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(s.options.Limits.Read)); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	var slow interface{ Timeout() bool }
	switch {
	case errors.As(err, &large):
		return nil, &apiError{status: http.StatusRequestEntityTooLarge,
			message: fmt.Sprintf("the body has more than %d bytes", large.Limit)}
	case errors.As(err, &slow) && slow.Timeout():
		return nil, &apiError{status: http.StatusRequestTimeout,
			message: fmt.Sprintf("the body did not arrive within %v", s.options.Limits.Read)}
	case err != nil:
		return nil, badRequest("", "the body: %v", err)
	}
	return body, nil // net/http lifts the deadline at the end of the body
}

// limit bounds the time of a request and of each write of its response.
func (s *Server) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), s.options.Limits.Request)
		defer cancel()
		next.ServeHTTP(&timedWriter{ResponseWriter: w, timeout: s.options.Limits.Write}, r.WithContext(ctx))
	})
}

// timedWriter writes a response to a client that has so much time to take each part of it. It notes the status.
type timedWriter struct {
	http.ResponseWriter
	timeout time.Duration
	status  int
}

// WriteHeader notes the status.
func (t *timedWriter) WriteHeader(status int) {
	t.status = status
	t.ResponseWriter.WriteHeader(status)
}

// Write writes a part.
func (t *timedWriter) Write(p []byte) (int, error) {
	if err := http.NewResponseController(t.ResponseWriter).SetWriteDeadline(time.Now().Add(t.timeout)); err != nil {
		return 0, err
	}
	if t.status == 0 {
		t.status = http.StatusOK
	}
	return t.ResponseWriter.Write(p)
}

// Unwrap is for [http.ResponseController].
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }
