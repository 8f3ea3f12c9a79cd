package api

import (
	"math"
	"strings"

	"lockstep/data"
	"lockstep/serve"
)

// text is the voice of /v1/completions.
type text struct{ language *data.Language }

type textBody struct {
	header
	Choices []textChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
}

type textChoice struct {
	Index     int                 `json:"index"`
	Text      string              `json:"text"`
	LogProbs  *textLogProbs       `json:"logprobs"`
	Finish    *serve.FinishReason `json:"finish_reason"`
	PromptIDs []int32             `json:"prompt_token_ids,omitempty"`
	IDs       []int32             `json:"token_ids,omitempty"`
}

type textLogProbs struct {
	Tokens   []string             `json:"tokens"`
	LogProbs []float32            `json:"token_logprobs"`
	Top      []map[string]float32 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"`
}

func (v text) choice(a *ask, c *choice, p piece) textChoice {
	t := textChoice{Index: c.index, Text: p.text, Finish: c.reason(), IDs: a.tokens(p)}
	if a.logprobs {
		t.LogProbs = v.logProbs(a, p)
	}
	return t
}

func (v text) logProbs(a *ask, p piece) *textLogProbs {
	l := &textLogProbs{Tokens: []string{}, LogProbs: []float32{}, Offsets: append([]int{}, p.offsets...)}
	for _, t := range p.tokens {
		l.Tokens, l.LogProbs = append(l.Tokens, spell(v.language, t.id)), append(l.LogProbs, finite(t.logprob))
		if a.top > 0 {
			top := map[string]float32{spell(v.language, t.id): finite(t.logprob)}
			for _, x := range t.likely {
				top[spell(v.language, x.ID)] = finite(x.LogProb)
			}
			l.Top = append(l.Top, top)
		}
	}
	return l
}

func (v text) body(h header, a *ask, choices []*choice, pieces []piece) any {
	b := textBody{header: h, Usage: cost(a, choices)}
	for i, c := range choices {
		t := v.choice(a, c, pieces[i])
		if a.ids {
			t.PromptIDs = c.prompt
		}
		b.Choices = append(b.Choices, t)
	}
	return b
}

func (v text) chunk(h header, a *ask, c *choice, p piece) any {
	return textBody{header: h, Choices: []textChoice{v.choice(a, c, p)}}
}

func (v text) opening(header, *choice) any { return nil }

func (v text) cost(h header, u *usage) any {
	return textBody{header: h, Choices: []textChoice{}, Usage: u}
}

// spell is a token as text; bytes that are no characters of their own become U+FFFD, as JSON has it.
func spell(l *data.Language, id int32) string {
	if l == nil {
		return ""
	}
	return strings.ToValidUTF8(l.Bytes(id), "\ufffd")
}

// finite is what JSON can say of a log-probability.
func finite(x float32) float32 { return max(x, -math.MaxFloat32) }
