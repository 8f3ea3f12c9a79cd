package api

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"lockstep/data/tokenizer"
	"lockstep/serve"
)

// voice is how an interface puts answers.
type voice interface {
	// body is the answer in one piece.
	body(h header, a *ask, choices []*choice, pieces []piece) any
	// chunk is a piece of a stream.
	chunk(h header, a *ask, c *choice, p piece) any
	// opening comes before the first chunk of a choice; nil: nothing does.
	opening(h header, c *choice) any
	// cost is the chunk with what the request took, behind all choices.
	cost(h header, u *usage) any
}

// header begins each answer and each chunk.
type header struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	Model       string `json:"model"`
	Fingerprint string `json:"system_fingerprint"` // the definition's digest: the arithmetic of every answer
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func (s *Server) header(kind, object string) header {
	var raw [12]byte
	rand.Read(raw[:]) // never fails
	return header{ID: fmt.Sprintf("%s-%x", kind, raw), Object: object, Created: time.Now().Unix(), Model: s.o.Name,
		Fingerprint: s.digest}
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	s.handle(w, r, s.completion, text{s.served.Language}, s.header("cmpl", "text_completion"))
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	s.handle(w, r, s.conversation, talk{s.served.Language}, s.header("chatcmpl", "chat.completion"))
}

func (s *Server) handle(w http.ResponseWriter, r *http.Request, read func(*form) (*ask, error), v voice, h header) {
	f, err := readForm(w, r)
	if err != nil {
		refuse(w, err)
		return
	}
	a, err := read(f)
	if err != nil {
		refuse(w, err)
		return
	}
	ready := make(chan struct{}, 1)
	feeds, err := s.start(r.Context(), a, ready)
	if err != nil {
		refuse(w, bad("", "%v", err))
		return
	}
	choices := make([]*choice, len(feeds))
	for i, f := range feeds {
		choices[i] = &choice{index: i, prompt: a.prompts[i/a.n], feed: f, stops: a.stops}
		if l := s.served.Language; l != nil {
			choices[i].decoder = &tokenizer.Decoder{Tokenizer: l.Tokenizer}
		}
	}
	if a.stream {
		s.stream(w, r, a, choices, ready, v, h)
		return
	}
	pieces := make([]piece, len(choices))
	whole := func(c *choice, p piece) error {
		all := &pieces[c.index]
		all.text, all.tokens, all.offsets = all.text+p.text, append(all.tokens, p.tokens...),
			append(all.offsets, p.offsets...)
		return nil
	}
	if err := s.follow(r, choices, ready, whole); err == nil {
		reply(w, http.StatusOK, v.body(h, a, choices, pieces))
	}
}

// follow hands on what comes of the choices until all have ended. An error is a client that is gone, or one of tell;
// what is in flight is cancelled then.
func (s *Server) follow(r *http.Request, choices []*choice, ready <-chan struct{},
	tell func(c *choice, p piece) error) error {
	open := len(choices)
	leave := func(err error) error {
		for _, c := range choices {
			if c.finish == "" {
				s.cancel(c.feed)
			}
		}
		return err
	}
	for open > 0 {
		select {
		case <-ready:
		case <-r.Context().Done():
			return leave(r.Context().Err())
		}
		for _, c := range choices {
			if c.finish != "" {
				continue
			}
			tokens, end := c.feed.take()
			if len(tokens) == 0 && end == "" {
				continue
			}
			p := c.add(tokens, end)
			if c.finish != "" {
				open--
				if end == "" {
					s.cancel(c.feed) // a text has ended it, of which the engine knows nothing
				}
			}
			if err := tell(c, p); err != nil {
				return leave(err)
			}
		}
	}
	return nil
}

func cost(a *ask, choices []*choice) *usage {
	u := &usage{}
	for _, p := range a.prompts {
		u.Prompt += len(p)
	}
	for _, c := range choices {
		u.Completion += c.count
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// ids are the tokens of a piece, where they are wanted.
func (a *ask) tokens(p piece) (ids []int32) {
	if !a.ids {
		return nil
	}
	for _, t := range p.tokens {
		ids = append(ids, t.id)
	}
	return ids
}

// reason is how a client is told that a choice has ended; nil: it goes on.
func (c *choice) reason() *serve.FinishReason {
	if c.finish == "" {
		return nil
	}
	return &c.finish
}

func reply(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // before the status is written, which could not be taken back
		refuse(w, fmt.Errorf("the answer cannot be written: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body.Bytes()) // an error is a client that is gone
}

// refuse answers with a fault, as OpenAI's interface puts it.
func refuse(w http.ResponseWriter, err error) {
	f, ok := err.(*fault)
	if !ok {
		f = &fault{status: http.StatusInternalServerError, message: err.Error()}
	}
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	b := body{Message: f.message, Type: "invalid_request_error", Code: f.status}
	if f.field != "" {
		b.Param = &f.field
	}
	reply(w, f.status, map[string]body{"error": b})
}
