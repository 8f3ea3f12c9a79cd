package toolcalls

import (
	"bytes"
	"slices"
	"strings"
)

// promptTries are the ends in a block at each of which the block is tried; behind that, its length alone counts. An
// argument may have any number of them.
const promptTries = 64

func (p *Parser) toBlock() {
	p.state, p.looked, p.next, p.tries = (*Parser).block, 0, 0, 0
}

// due tells whether a block is to be tried. It is where something may have ended it, and where it has grown by a
// quarter, so that a text which is no block is found out. All trials together take time in proportion to the text.
func (p *Parser) due(final bool) bool {
	ended := p.tries < promptTries && p.ended()
	p.looked = len(p.held)
	if ended {
		p.tries++
	}
	if !final && !ended && len(p.held) < p.next {
		return false
	}
	p.next = len(p.held) + len(p.held)/4 + 16
	return true
}

// ended tells whether something has come that ends blocks.
func (p *Parser) ended() bool {
	return slices.ContainsFunc(p.grammar.ends, func(end string) bool {
		return bytes.Contains(p.held[max(0, p.looked-len(end)+1):], []byte(end))
	})
}

// block reads calls, or gives up: what began the block is text then.
func (p *Parser) block(final bool) bool {
	p.skipBreaks()
	if !p.due(final) {
		return false
	}
	c := cursor{text: string(p.held), final: final}
	calls, ok := p.grammar.match(&c, p.o.Tools)
	switch {
	case c.short && !final:
		return false
	case ok:
		p.take(c.at)
		p.call(calls)
		p.toText()
	case p.grammar.open == nil:
		p.grammar = grammar{} // what follows is text
		p.state = (*Parser).text
	case c.short:
		p.content(p.take(len(p.held)))
		p.state = (*Parser).text
	default:
		p.content(p.take(len(p.opening())))
		p.state = (*Parser).text
	}
	return len(p.held) > 0
}

// opening is what the block began with.
func (p *Parser) opening() string {
	for _, open := range p.grammar.open {
		if strings.HasPrefix(string(p.held), open) {
			return open
		}
	}
	panic("toolcalls: a block without its beginning")
}

// call adds calls. White space before them is not content.
func (p *Parser) call(calls []Call) {
	for _, c := range calls {
		if p.calls++; p.calls == 1 || !p.o.First {
			p.d.Calls = append(p.d.Calls, c)
		}
	}
	p.blank, p.called = "", true
}
