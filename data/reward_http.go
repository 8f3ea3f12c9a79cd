package data

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// maxRetries bounds how often a server gets the same request again.
const maxRetries = 20

// The pauses between requests that are tried again: the first, doubled each time, and the longest.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 8 * time.Second
)

// server gets the rewards of a batch by one request.
type server struct {
	url     string
	retries int
	timeout time.Duration
	pause   time.Duration // before the first retry
	client  *http.Client
}

func newServer(o RewardOptions) *server {
	// A redirect is answered as any other status that is not 200: following one may turn the POST into a GET.
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &server{url: o.URL, retries: o.Retries, timeout: o.Timeout, pause: firstPause, client: client}
}

// name is the address without user, password and query, which may be secrets.
func (s *server) name() string {
	u, err := url.Parse(s.url)
	if err != nil {
		panic(err) // RewardOptions.Validate has read it
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

// retryable is an error after which the server gets the same request again.
type retryable struct{ error }

func (s *server) judge(ctx context.Context, answers []Answer) ([]float64, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]any{"items": answers}); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		rewards, err := s.post(ctx, body.Bytes(), len(answers))
		again := errors.As(err, new(retryable))
		switch {
		case !again:
			return rewards, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case try > s.retries:
			return nil, fmt.Errorf("failed %d times, the last: %w", try, err)
		}
		select {
		case <-time.After(s.pauseAfter(try)):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// pauseAfter is how long to wait after a request, counted from 1, that failed.
func (s *server) pauseAfter(try int) time.Duration {
	return min(s.pause<<min(try-1, maxRetries), longestPause)
}

// post sends one request and reads its answer, of n rewards.
func (s *server) post(ctx context.Context, body []byte, n int) ([]float64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("gave no rewards for %d answers within %v", n,
		s.timeout))
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, retryable{plainError(ctx, err)}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, int64(outputOf(n))+1))
	switch {
	case err != nil:
		return nil, retryable{plainError(ctx, err)}
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500:
		return nil, retryable{statusError(resp, text)}
	case resp.StatusCode != http.StatusOK:
		return nil, statusError(resp, text)
	case len(text) > outputOf(n):
		return nil, fmt.Errorf(`answered with more than %d bytes for %d answers: want {"rewards": [number, ...]}`,
			outputOf(n), n)
	}
	return parseRewards(text)
}

// plainError is an error without method and address, which the caller adds, or the cause of a time-out.
func plainError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func statusError(resp *http.Response, text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return fmt.Errorf("answered %q", resp.Status)
	}
	return fmt.Errorf("answered %q: %.200q", resp.Status, text)
}

func parseRewards(text []byte) ([]float64, error) {
	var v struct{ Rewards []*float64 }
	if err := json.Unmarshal(text, &v); err != nil || v.Rewards == nil {
		return nil, fmt.Errorf(`answered %.80q: want {"rewards": [number, ...]}`, text)
	}
	rewards := make([]float64, len(v.Rewards))
	for i, r := range v.Rewards {
		if r == nil {
			return nil, fmt.Errorf("rewards[%d] is null: want a number", i)
		}
		rewards[i] = *r
	}
	return rewards, nil
}
