package api

import (
	"strings"
	"unicode/utf8"

	"lockstep/data/tokenizer"
	"lockstep/serve"
)

// choice is a sample on its way to a client.
type choice struct {
	index   int
	prompt  []int32
	feed    *feed
	decoder *tokenizer.Decoder // nil: the model has no tokenizer
	stops   []string
	held    string // text that may be the beginning of a stop
	chars   int    // of the text before the next token
	finish  serve.FinishReason
	count   int // tokens
}

// piece is what came of a choice at once.
type piece struct {
	text    string
	tokens  []token
	offsets []int // characters of text before each token
}

// add takes new tokens over. What they make certain of the text is the piece's; a stop ends the choice, and what was
// drawn behind it is nobody's.
func (c *choice) add(tokens []token, end serve.FinishReason) (p piece) {
	for i, t := range tokens {
		p.tokens, p.offsets = append(p.tokens, t), append(p.offsets, c.chars)
		c.count++
		if end == serve.FinishStop && i == len(tokens)-1 {
			break // the id that ends the answer is no part of the text
		}
		if c.decoder != nil && c.say(&p, c.decoder.Add(t.id)) {
			return p
		}
	}
	if c.finish = end; end != "" && c.decoder != nil && !c.say(&p, c.decoder.Rest()) {
		p.text += c.held
		c.held = ""
	}
	return p
}

// say adds text to a piece, but for what may become a stop; true: there is one, and the choice ends.
func (c *choice) say(p *piece, text string) (stopped bool) {
	c.chars += utf8.RuneCountInString(text)
	c.held += text
	first := -1
	for _, stop := range c.stops {
		if i := strings.Index(c.held, stop); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		p.text += c.held[:first]
		c.held, c.finish = "", serve.FinishStop
		return true
	}
	n := len(c.held) - begun(c.held, c.stops)
	p.text += c.held[:n]
	c.held = c.held[n:]
	return false
}

// begun is the length of the longest end of text that begins one of the stops.
func begun(text string, stops []string) (most int) {
	for _, stop := range stops {
		for n := min(len(stop)-1, len(text)); n > most; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				most = n
			}
		}
	}
	return most
}
