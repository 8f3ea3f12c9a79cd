package api

import (
	"lockstep/data"
	"lockstep/serve"
)

// talk is the voice of /v1/chat/completions.
type talk struct{ language *data.Language }

type talkBody struct {
	header
	Choices   []talkChoice `json:"choices"`
	Usage     *usage       `json:"usage,omitempty"`
	PromptIDs []int32      `json:"prompt_token_ids,omitempty"`
}

type talkChoice struct {
	Index    int                 `json:"index"`
	Message  *message            `json:"message,omitempty"`
	Delta    *message            `json:"delta,omitempty"` // of a stream
	LogProbs *talkLogProbs       `json:"logprobs"`
	Finish   *serve.FinishReason `json:"finish_reason"`
	IDs      []int32             `json:"token_ids,omitempty"`
}

type message struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type talkLogProbs struct {
	Content []talkToken `json:"content"`
}

type talkToken struct {
	likelyToken
	Top []likelyToken `json:"top_logprobs"`
}

type likelyToken struct {
	Token   string  `json:"token"`
	LogProb float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func (v talk) token(id int32, logprob float32) likelyToken {
	t := likelyToken{Token: spell(v.language, id), LogProb: finite(logprob), Bytes: []int{}}
	for _, b := range []byte(v.language.Bytes(id)) {
		t.Bytes = append(t.Bytes, int(b))
	}
	return t
}

func (v talk) choice(a *ask, c *choice, p piece) talkChoice {
	t := talkChoice{Index: c.index, Finish: c.reason(), IDs: a.tokens(p)}
	if !a.logprobs {
		return t
	}
	t.LogProbs = &talkLogProbs{Content: []talkToken{}}
	for _, x := range p.tokens {
		entry := talkToken{v.token(x.id, x.logprob), []likelyToken{}}
		for _, l := range x.likely {
			entry.Top = append(entry.Top, v.token(l.ID, l.LogProb))
		}
		t.LogProbs.Content = append(t.LogProbs.Content, entry)
	}
	return t
}

func (v talk) body(h header, a *ask, choices []*choice, pieces []piece) any {
	b := talkBody{header: h, Usage: cost(a, choices)}
	if a.ids {
		b.PromptIDs = a.prompts[0]
	}
	for i, c := range choices {
		t := v.choice(a, c, pieces[i])
		t.Message = &message{"assistant", &pieces[i].text}
		b.Choices = append(b.Choices, t)
	}
	return b
}

// streamed are the names of a stream's chunks.
func streamed(h header) header {
	h.Object = "chat.completion.chunk"
	return h
}

func (v talk) chunk(h header, a *ask, c *choice, p piece) any {
	t := v.choice(a, c, p)
	t.Delta = &message{Content: &p.text}
	return talkBody{header: streamed(h), Choices: []talkChoice{t}}
}

func (v talk) opening(h header, c *choice) any {
	empty := ""
	return talkBody{header: streamed(h), Choices: []talkChoice{{Index: c.index, Delta: &message{"assistant", &empty}}}}
}

func (v talk) cost(h header, u *usage) any {
	return talkBody{header: streamed(h), Choices: []talkChoice{}, Usage: u}
}
