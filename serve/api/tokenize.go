package api

import (
	"net/http"
	"time"

	"lockstep/data"
	"lockstep/data/ordered"
)

// tokenize answers POST /tokenize: the token ids of {"prompt": text}, or of {"messages": ...} in the chat template.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var ids []int32
	if err := s.parse(w, r, func(f *fields) (err error) {
		f.ignore("model")
		if ids, err = s.encode(f, "prompt", "messages", "tools", "chat_template_kwargs"); err != nil {
			f.reject("prompt", "%v", err)
		}
		return f.err()
	}); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Count     int     `json:"count"`
		MaxLength int     `json:"max_model_len"`
		Tokens    []int32 `json:"tokens"`
	}{len(ids), s.engine.MaxLength(), ids})
}

// encode converts the prompt that these fields describe to token ids.
func (s *Server) encode(f *fields, names ...string) ([]int32, error) {
	prompt := ordered.NewDict()
	for _, name := range names {
		if v := f.get(name); v != nil {
			prompt.Set(name, v)
		}
	}
	return data.Prompt(f.ctx, prompt, s.served.Tokenizer, s.served.Model.Vocab, time.Now())
}

// detokenize answers POST /detokenize: the text of {"tokens": ids}.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var ids []int32
	if err := s.parse(w, r, func(f *fields) error {
		f.ignore("model")
		ids = f.tokenIDs("tokens", f.get("tokens"), s.served.Model.Vocab)
		if s.served.Tokenizer == nil {
			f.reject("tokens", "the model has no tokenizer")
		}
		return f.err()
	}); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"prompt": s.served.Tokenizer.Decode(ids)})
}
