package toolcalls

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode"
)

// cursor reads a block from its beginning. Where the text ends before the block is decided, short is set: what was
// found does not count until there is more text. So a match on more text is the same match.
type cursor struct {
	text  string
	at    int
	final bool // nothing follows text
	short bool
}

// literal takes x.
func (c *cursor) literal(x string) bool {
	rest := c.text[c.at:]
	if strings.HasPrefix(rest, x) {
		c.at += len(x)
		return true
	}
	c.short = c.short || strings.HasPrefix(x, rest)
	return false
}

// closed takes x, or the end of the text where nothing follows: the token of x may have ended the answer.
func (c *cursor) closed(x string) bool { return c.literal(x) || c.final && c.at == len(c.text) }

// section takes one call or more between two marks, with white space around them.
func (c *cursor) section(begin, end string, one func() (Call, bool)) (calls []Call, ok bool) {
	if !c.literal(begin) {
		return nil, false
	}
	for {
		c.space()
		if len(calls) > 0 && c.closed(end) {
			return calls, true
		}
		call, ok := one()
		if !ok {
			return nil, false
		}
		calls = append(calls, call)
	}
}

func (c *cursor) space() {
	rest := strings.TrimLeftFunc(c.text[c.at:], unicode.IsSpace)
	c.at = len(c.text) - len(rest)
}

// until takes a text and the first x behind it.
func (c *cursor) until(x string) (string, bool) {
	text, _, found := strings.Cut(c.text[c.at:], x)
	if !found {
		c.short = true
		return "", false
	}
	c.at += len(text) + len(x)
	return text, true
}

// name takes a function's name, as far as any of these families lets it go.
func (c *cursor) name() (string, bool) {
	rest := c.text[c.at:]
	n := strings.IndexFunc(rest, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("<>{}\"|", r) })
	if n < 0 {
		c.short, n = true, len(rest)
	}
	c.at += n
	return rest[:n], n > 0
}

// object takes a JSON object.
func (c *cursor) object() (json.RawMessage, bool) {
	rest := c.text[c.at:]
	if !strings.HasPrefix(rest, "{") {
		c.short = c.short || rest == ""
		return nil, false
	}
	d := json.NewDecoder(strings.NewReader(rest))
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		c.short = c.short || errors.Is(err, io.ErrUnexpectedEOF)
		return nil, false
	}
	c.at += int(d.InputOffset())
	return raw, true
}

// value takes the text of a parameter up to close, which counts only where something of next follows it: the text may
// have the same letters.
func (c *cursor) value(close string, next ...string) (string, bool) {
	rest, from := c.text[c.at:], 0
	for {
		i := strings.Index(rest[from:], close)
		if i < 0 {
			c.short = true
			return "", false
		}
		i += from
		behind := strings.TrimLeftFunc(rest[i+len(close):], unicode.IsSpace)
		for _, x := range next {
			if strings.HasPrefix(behind, x) {
				c.at += i + len(close)
				return rest[:i], true
			}
			if strings.HasPrefix(x, behind) {
				c.short = true
				return "", false
			}
		}
		from = i + len(close)
	}
}
