package toolcalls

import (
	"bytes"
	"strings"
)

// Thinking is what is known of thinking before an answer begins.
type Thinking int

// What a prompt says of thinking.
const (
	NeverThinks Thinking = iota // the template has no <think>
	MayThink                    // the answer may begin with <think>
	Thinks                      // the prompt has ended with <think>
)

const (
	thinkBegin = "<think>"
	thinkEnd   = "</think>"
)

// Options of a parser.
type Options struct {
	Format    Format
	Tools     Tools
	Calls     bool // tool calls are read; otherwise they are content
	First     bool // the first call alone is told
	Reasoning bool // thinking is told as such; otherwise it is content, as written, and no calls are looked for in it
	Thinking  Thinking
}

// Call is a call of a function.
type Call struct {
	ID        string // "": the family's calls have none
	Name      string
	Arguments string // a JSON object
}

// Delta is what is new. Deltas add up to the whole.
type Delta struct {
	Content   string
	Reasoning string
	Calls     []Call
}

// Add appends what is new.
func (d *Delta) Add(more Delta) {
	d.Content += more.Content
	d.Reasoning += more.Reasoning
	d.Calls = append(d.Calls, more.Calls...)
}

// Parser reads one answer.
type Parser struct {
	o       Options
	grammar grammar
	state   func(p *Parser, final bool) (more bool)
	held    []byte // text that is not decided
	looked  int    // bytes of held in which nothing was found that ends a block
	next    int    // bytes of held at which a block is tried again in any case
	tries   int    // of this block, where an end was found
	blank   string // white space that is content unless a call follows it
	calls   int
	called  bool    // nothing but white space has come since a call
	skip    bool    // line breaks that come now are not content
	message message // of Harmony
	told    struct{ content, reasoning bool }
	d       Delta
}

// NewParser makes a parser.
func NewParser(o Options) *Parser {
	p := &Parser{o: o, state: (*Parser).start}
	if o.Format == Harmony {
		p.state = (*Parser).header
		return p
	}
	if o.Calls {
		p.grammar = grammars[o.Format]
	}
	switch o.Thinking {
	case NeverThinks:
		p.toText()
	case Thinks:
		p.state, p.skip = (*Parser).thinking, o.Reasoning
	}
	return p
}

// Add is what is new with a piece of text.
func (p *Parser) Add(text string) Delta { return p.advance(text, false) }

// End is what is new since nothing follows.
func (p *Parser) End() Delta { return p.advance("", true) }

// Called tells whether the answer has calls so far.
func (p *Parser) Called() bool { return p.calls > 0 }

func (p *Parser) advance(text string, final bool) Delta {
	p.held = append(p.held, text...)
	p.d = Delta{}
	for p.state(p, final) {
	}
	if final && !p.called {
		p.d.Content += p.blank
		p.blank = ""
	}
	return p.d
}

// start looks for <think> at the beginning.
func (p *Parser) start(final bool) bool {
	text := strings.TrimLeft(string(p.held), " \n\r\t")
	switch {
	case strings.HasPrefix(text, thinkBegin):
		if n := len(p.held) - len(text) + len(thinkBegin); p.o.Reasoning {
			p.take(n)
		} else {
			p.content(p.take(n))
		}
		p.state, p.skip = (*Parser).thinking, p.o.Reasoning
	case strings.HasPrefix(thinkBegin, text) && !final:
		return false
	default:
		p.toText()
	}
	return true
}

// thinking goes on to </think>.
func (p *Parser) thinking(final bool) bool {
	if i := bytes.Index(p.held, []byte(thinkEnd)); i >= 0 {
		p.thought(p.take(i))
		if p.take(len(thinkEnd)); p.o.Reasoning {
			p.blank, p.skip = "", true
		} else {
			p.content(thinkEnd)
		}
		p.toText()
		return true
	}
	n := len(p.held)
	if !final {
		n -= partial(p.held, thinkEnd)
	}
	p.thought(p.take(n))
	if final && p.o.Reasoning {
		p.blank = ""
	}
	return false
}

// thought adds to what the model thinks, without the line breaks at either end.
func (p *Parser) thought(text string) {
	if !p.o.Reasoning {
		p.content(text)
		return
	}
	if p.skip {
		text = strings.TrimLeft(text, "\n")
		p.skip = text == ""
	}
	all := p.blank + text
	text = strings.TrimRight(all, "\n")
	p.blank = all[len(text):]
	p.d.Reasoning += text
}

func (p *Parser) toText() {
	p.state = (*Parser).text
	if p.o.Calls && p.o.Format == Llama {
		p.toBlock()
	}
}

// text goes on to where a block of calls begins.
func (p *Parser) text(final bool) bool {
	p.skipBreaks()
	first := -1
	for _, open := range p.grammar.open {
		if i := bytes.Index(p.held, []byte(open)); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		p.content(p.take(first))
		p.toBlock()
		return true
	}
	n := len(p.held)
	if !final {
		n -= partial(p.held, p.grammar.open...)
	}
	p.content(p.take(n))
	return false
}

// skipBreaks takes line breaks that are not content.
func (p *Parser) skipBreaks() {
	if p.skip {
		p.held = bytes.TrimLeft(p.held, "\n")
		p.skip = len(p.held) == 0
	}
}

// content adds text, but holds white space back that calls may follow.
func (p *Parser) content(text string) {
	if !p.o.Calls || p.o.Format == None {
		p.d.Content += text
		return
	}
	all := p.blank + text
	text = strings.TrimRight(all, " \n\r\t")
	p.blank = all[len(text):]
	if text != "" {
		p.d.Content += text
		p.called = false
	}
}

// take removes the first n bytes of what is held.
func (p *Parser) take(n int) string {
	text := string(p.held[:n])
	p.held = p.held[n:]
	p.looked = max(0, p.looked-n)
	return text
}

// partial is the length of the longest end of text that begins one of marks and is not all of it.
func partial(text []byte, marks ...string) (longest int) {
	for _, mark := range marks {
		for n := min(len(mark)-1, len(text)); n > longest; n-- {
			if bytes.HasSuffix(text, []byte(mark[:n])) {
				longest = n
			}
		}
	}
	return longest
}
