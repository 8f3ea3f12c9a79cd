package api

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"lockstep/data"
	"lockstep/data/tokenizer"
	"lockstep/serve"
	"lockstep/serve/api/toolcalls"
)

// responseFormat makes the JSON values of an endpoint's responses.
type responseFormat interface {
	// response is the whole response; deltas has all that each choice generated.
	response(h responseHeader, req *samplingRequest, choices []*choice, deltas []delta) any
	// firstChunk is sent before the first chunk of a choice in a stream; nil: nothing is.
	firstChunk(h responseHeader, c *choice) any
	// chunks are a delta of a choice in a stream; u nil: without its usage.
	chunks(h responseHeader, req *samplingRequest, c *choice, d delta, u *usage) []any
	// usageChunk ends a stream.
	usageChunk(h responseHeader, u *usage) any
}

// responseHeader begins each response and each chunk.
type responseHeader struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	Model       string `json:"model"`
	Fingerprint string `json:"system_fingerprint"` // the definition's digest
}

// newHeader makes the header of a response with a random ID.
func (s *Server) newHeader(kind, object string) responseHeader {
	var random [12]byte
	rand.Read(random[:]) // never fails
	return responseHeader{
		ID: fmt.Sprintf("%s-%x", kind, random), Object: object, Created: time.Now().Unix(), Model: s.options.Name,
		Fingerprint: s.definition,
	}
}

// usage counts the tokens of a request.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func newUsage(req *samplingRequest, choices []*choice) *usage {
	u := &usage{}
	for _, p := range req.prompts {
		u.Prompt += len(p)
	}
	for _, c := range choices {
		u.Completion += c.tokens
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// generate answers a request for samples: it parses the fields, submits the samples, and sends the response in one
// piece or as a stream.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, parse func(*fields) (*samplingRequest, error),
	format responseFormat, h responseHeader) {
	var req *samplingRequest
	if err := s.parse(w, r, func(f *fields) (err error) {
		req, err = parse(f)
		return err
	}); err != nil {
		writeError(w, err)
		return
	}
	ready := make(chan struct{}, 1)
	queues, err := s.submit(r.Context(), req, ready)
	if err != nil {
		writeError(w, err)
		return
	}
	choices := make([]*choice, len(queues))
	for i, q := range queues {
		choices[i] = &choice{index: i, prompt: req.prompts[i/req.n], echo: req.echo, queue: q, stops: req.stops}
		if tok := s.served.Tokenizer; tok != nil {
			choices[i].decoder = &tokenizer.Decoder{Tokenizer: tok.Tokenizer}
		}
		if req.answer != nil {
			choices[i].answer = toolcalls.NewParser(*req.answer)
		}
	}
	if req.stream {
		s.stream(w, r, req, choices, ready, format, h)
		return
	}
	deltas := make([]delta, len(choices))
	collect := func(c *choice, d delta) error {
		all := &deltas[c.index]
		all.text += d.text
		all.answer.Add(d.answer)
		all.echoed += d.echoed
		all.tokens, all.offsets = append(all.tokens, d.tokens...), append(all.offsets, d.offsets...)
		return nil
	}
	switch err := s.deliver(r, req, choices, ready, collect); {
	case err == nil:
		writeJSON(w, http.StatusOK, format.response(h, req, choices, deltas))
	case isOurs(err):
		writeError(w, err)
	}
}

// isOurs tells whether a response ended early for a reason that its client should know: it has not left.
func isOurs(err error) bool {
	return errors.Is(err, serve.ErrNotFinite) || errors.Is(err, errStopping) || errors.Is(err, errTooLong)
}

// deliver passes deltas of the choices to send until all choices have ended. If the client leaves, a choice or send
// fails, it cancels what is in flight and returns the error.
func (s *Server) deliver(r *http.Request, req *samplingRequest, choices []*choice, ready <-chan struct{},
	send func(c *choice, d delta) error) error {
	open := len(choices)
	defer func() {
		u := newUsage(req, choices)
		x := noted(r)
		x.prompt, x.completion = u.Prompt, u.Completion
	}()
	abort := func(err error) error {
		var running []*outputQueue
		for _, c := range choices {
			if c.finish == "" {
				running = append(running, c.queue)
			}
		}
		s.cancel(running...)
		return err
	}
	for open > 0 {
		select {
		case <-ready:
		case <-r.Context().Done():
			return abort(cmp.Or(ended(r.Context()), r.Context().Err()))
		}
		for _, c := range choices {
			if c.finish != "" {
				continue
			}
			out := c.queue.take()
			if out.failed != nil {
				c.finish = out.finish
				return abort(out.failed)
			}
			if len(out.tokens) == 0 && out.finish == "" {
				continue
			}
			noted(r).token()
			c.scores = out.prompt
			d := c.add(out.tokens, out.finish)
			if c.finish != "" {
				open--
				if out.finish == "" {
					s.cancel(c.queue) // a stop string ended it; the engine does not know
				}
			}
			if err := send(c, d); err != nil {
				return abort(err)
			}
		}
	}
	return nil
}

// stream sends a request's deltas as server-sent events.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, req *samplingRequest, choices []*choice,
	ready <-chan struct{}, format responseFormat, h responseHeader) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	control := http.NewResponseController(w)
	send := func(event any) error {
		if event == nil {
			return nil
		}
		line, err := json.Marshal(event)
		if err != nil {
			return err
		}
		if _, err := w.Write(append(append([]byte("data: "), line...), "\n\n"...)); err != nil {
			return err
		}
		return control.Flush()
	}
	begun := make([]bool, len(choices))
	err := s.deliver(r, req, choices, ready, func(c *choice, d delta) error {
		if !begun[c.index] {
			begun[c.index] = true
			if err := send(format.firstChunk(h, c)); err != nil {
				return err
			}
		}
		var so *usage
		if req.chunkUsage {
			so = newUsage(req, choices)
		}
		for _, event := range format.chunks(h, req, c, d, so) {
			if err := send(event); err != nil {
				return err
			}
		}
		return nil
	})
	if isOurs(err) {
		send(errorBody(err)) // fails only if the client has left
	}
	if err == nil && req.showUsage {
		err = send(format.usageChunk(h, newUsage(req, choices)))
	}
	if err == nil {
		w.Write([]byte("data: [DONE]\n\n")) // fails only if the client has left
	}
}

// ids are the generated token ids of a delta, nil unless the request asks for them.
func (req *samplingRequest) ids(d delta) (ids []int32) {
	if !req.tokenIDs {
		return nil
	}
	for _, t := range d.tokens[d.echoed:] {
		ids = append(ids, t.id)
	}
	return ids
}

// tokenText is a token as text, "" without a tokenizer. Bytes that are not valid UTF-8 become U+FFFD.
func tokenText(tok *data.ChatTokenizer, id int32) string {
	if tok == nil {
		return ""
	}
	return strings.ToValidUTF8(tok.Bytes(id), "\ufffd")
}

// finite replaces a log-probability of -Inf, which JSON cannot express, by the least finite number.
func finite(x float32) float32 { return max(x, -math.MaxFloat32) }
