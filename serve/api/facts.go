package api

import (
	"fmt"
	"net/http"
	"time"

	"lockstep/data"
	"lockstep/data/ordered"
	"lockstep/serve"
)

// models lists the one model, with what a client may have to know of it.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type entry struct {
		ID         string `json:"id"`
		Object     string `json:"object"`
		Created    int64  `json:"created"`
		Owner      string `json:"owned_by"`
		Positions  int    `json:"max_model_len"`
		Definition string `json:"definition"`
	}
	reply(w, http.StatusOK, struct {
		Object string  `json:"object"`
		Data   []entry `json:"data"`
	}{"list", []entry{{s.o.Name, "model", s.born.Unix(), "lockstep", s.engine.Positions(), s.digest}}})
}

// metrics are the engine's counters in Prometheus' text format.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	var c serve.Counters
	var running, waiting int
	if err := s.do(r.Context(), func() {
		c, waiting = s.engine.Counters, s.engine.Waiting()
		running = s.engine.InFlight() - waiting
	}); err != nil {
		return // the client is gone
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, m := range []struct {
		name, kind, help string
		value            int
	}{
		{"requests_running", "gauge", "Samples in the batch.", running},
		{"requests_waiting", "gauge", "Samples that wait for room.", waiting},
		{"steps_total", "counter", "Forward passes.", c.Steps},
		{"generation_tokens_total", "counter", "Tokens drawn.", c.Drawn},
		{"prompt_tokens_total", "counter", "Rows computed of prompts, and of samples read again.", c.Prefilled},
		{"prompt_tokens_cached_total", "counter", "Rows of such whose keys were there.", c.Reused},
		{"preemptions_total", "counter", "Times that a sample gave its pages to older ones.", c.Preempted},
		{"cancelled_total", "counter", "Samples whose clients left, or that a text ended.", c.Cancelled},
	} {
		fmt.Fprintf(w, "# HELP lockstep_%s %s\n# TYPE lockstep_%s %s\nlockstep_%s %d\n", m.name, m.help, m.name, m.kind,
			m.name, m.value)
	}
}

// tokenize is the ids of a text, {"prompt": text}, or of messages as the model reads them.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	f, err := readForm(w, r)
	if err != nil {
		refuse(w, err)
		return
	}
	f.ignore("model")
	line := ordered.NewDict()
	for _, name := range []string{"prompt", "messages", "tools", "chat_template_kwargs"} {
		if v := f.get(name); v != nil {
			line.Set(name, v)
		}
	}
	ids, err := data.Prompt(line, s.served.Language, s.served.Model.Vocab, time.Now())
	if err != nil {
		f.refuse("prompt", "%v", err)
	}
	if err := f.err(); err != nil {
		refuse(w, err)
		return
	}
	reply(w, http.StatusOK, struct {
		Count     int     `json:"count"`
		Positions int     `json:"max_model_len"`
		Tokens    []int32 `json:"tokens"`
	}{len(ids), s.engine.Positions(), ids})
}

// detokenize is the text of {"tokens": ids}.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	f, err := readForm(w, r)
	if err != nil {
		refuse(w, err)
		return
	}
	f.ignore("model")
	ids := f.tokens("tokens", f.get("tokens"))
	if s.served.Language == nil {
		f.refuse("tokens", "the model has no tokenizer")
	}
	if err := f.err(); err != nil {
		refuse(w, err)
		return
	}
	reply(w, http.StatusOK, map[string]string{"prompt": s.served.Language.Decode(ids)})
}
