package api

import (
	"strings"
	"unicode/utf8"

	"lockstep/data/tokenizer"
	"lockstep/serve"
	"lockstep/serve/api/toolcalls"
)

// choice is a sample of a response, as OpenAI's interface calls it. It makes text of the tokens and applies
// stop strings.
type choice struct {
	index   int
	prompt  []int32
	scores  []serve.PromptToken // of the prompt from its second token on, where the request asks for them
	echo    bool                // the prompt is still to come first
	queue   *outputQueue
	decoder *tokenizer.Decoder // nil: the model has no tokenizer
	stops   []string           // stop strings
	held    string             // text withheld because it may begin a stop string
	chars   int                // characters of text before the next token
	finish  serve.FinishReason
	tokens  int // so far

	answer *toolcalls.Parser // of a chat completion
	called int               // tool calls that came before the delta
}

// delta is what is new of a choice.
type delta struct {
	text    string
	tokens  []token
	offsets []int // of each token: characters of text before it
	echoed  int   // the first of tokens that are the prompt's
	answer  toolcalls.Delta
}

// add appends tokens and returns what a client may see of them. finish is why the engine ended the sample, "" while it
// runs. A stop string ends the choice; tokens after it are discarded.
func (c *choice) add(tokens []token, finish serve.FinishReason) delta {
	d := c.addTokens(tokens, finish)
	if c.answer != nil {
		d.answer = c.answer.Add(d.text)
		if c.finish != "" {
			d.answer.Add(c.answer.End())
		}
	}
	return d
}

func (c *choice) addTokens(tokens []token, finish serve.FinishReason) (d delta) {
	if c.echo {
		c.echo = false
		c.addPrompt(&d)
	}
	for i, t := range tokens {
		d.tokens, d.offsets = append(d.tokens, t), append(d.offsets, c.chars)
		c.tokens++
		if finish == serve.FinishStop && i == len(tokens)-1 {
			break // the stop token is not part of the text
		}
		if c.decoder != nil && c.addText(&d, c.decoder.Add(t.id)) {
			return d
		}
	}
	if c.finish = finish; finish != "" && c.decoder != nil && !c.addText(&d, c.decoder.Rest()) {
		d.text += c.held
		c.held = ""
	}
	return d
}

// addPrompt begins a delta with the prompt. Stop strings are not looked for in it.
func (c *choice) addPrompt(d *delta) {
	var decoder tokenizer.Decoder
	if c.decoder != nil {
		decoder.Tokenizer = c.decoder.Tokenizer
	}
	d.echoed = len(c.prompt)
	for i, id := range c.prompt {
		t := token{id: id}
		if i > 0 && c.scores != nil {
			t.logprob, t.top = c.scores[i-1].LogProb, c.scores[i-1].Top
		}
		d.tokens, d.offsets = append(d.tokens, t), append(d.offsets, c.chars)
		if c.decoder != nil {
			text := decoder.Add(id)
			d.text += text
			c.chars += utf8.RuneCountInString(text)
		}
	}
	if c.decoder != nil {
		rest := decoder.Rest()
		d.text += rest
		c.chars += utf8.RuneCountInString(rest)
	}
}

// addText appends text to a delta, but withholds an end that may begin a stop string. It reports whether a stop string
// ended the choice.
func (c *choice) addText(d *delta, text string) (stopped bool) {
	c.chars += utf8.RuneCountInString(text)
	c.held += text
	first := -1
	for _, stop := range c.stops {
		if i := strings.Index(c.held, stop); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		d.text += c.held[:first]
		c.held, c.finish = "", serve.FinishStop
		return true
	}
	n := len(c.held) - partialStop(c.held, c.stops)
	d.text += c.held[:n]
	c.held = c.held[n:]
	return false
}

// partialStop is the length in bytes of the longest suffix of text that is a proper prefix of a stop string.
func partialStop(text string, stops []string) (longest int) {
	for _, stop := range stops {
		for n := min(len(stop)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}

// finishToolCalls is finish_reason of a choice that ends with the calls of tools.
const finishToolCalls serve.FinishReason = "tool_calls"

// finishReason is the choice's finish_reason, nil while it runs.
func (c *choice) finishReason() *serve.FinishReason {
	reason := c.finish
	switch {
	case reason == "":
		return nil
	case reason == serve.FinishStop && c.answer != nil && c.answer.Called():
		reason = finishToolCalls
	}
	return &reason
}
