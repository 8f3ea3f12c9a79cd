package toolcalls

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// The marks of gpt-oss. The prompt ends with <|start|>assistant, so an answer begins within a header.
const (
	harmonyStart   = "<|start|>"
	harmonyChannel = "<|channel|>"
	harmonyMessage = "<|message|>"
	harmonyTo      = " to="

	longestHeader = 512 // bytes
)

// harmonyEnds are what ends a message; the last two begin the next.
var harmonyEnds = []string{"<|end|>", "<|call|>", "<|return|>", harmonyStart, harmonyChannel}

// harmonyHeader has the recipient before or behind the channel.
var harmonyHeader = regexp.MustCompile(`^(?:<\|start\|>assistant)?(?: to=([^\s<]+))?<\|channel\|>` +
	`(analysis|commentary|final)(?: to=([^\s<]+))?\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*$`)

// message is the one that is being read.
type message struct {
	raw      string // its header, as written
	function string // that it calls; "": none
	analysis bool
	seen     bool // something of it was told
}

// header reads up to <|message|>. What is no header is content.
func (p *Parser) header(final bool) bool {
	i := bytes.Index(p.held, []byte(harmonyMessage))
	if i < 0 && !final && len(p.held) <= longestHeader && p.mayBeHeader() {
		return false
	}
	p.state = (*Parser).between
	found := harmonyHeader.FindSubmatch(p.held[:max(i, 0)])
	if i < 0 || i > longestHeader || found == nil {
		n := 0
		for _, mark := range []string{harmonyStart, harmonyChannel} {
			if bytes.HasPrefix(p.held, []byte(mark)) {
				n = len(mark)
			}
		}
		p.d.Content += p.take(n)
		return true
	}
	p.message = message{raw: p.take(i + len(harmonyMessage)), analysis: string(found[2]) == "analysis"}
	to := string(found[1]) + string(found[3])
	name, isFunction := strings.CutPrefix(to, "functions.")
	switch {
	case to == "":
		p.state = (*Parser).body
	case isFunction && name != "" && p.o.Calls:
		p.message.function, p.looked = name, 0
		p.state = (*Parser).harmonyCall
	default: // of a tool that the request does not have
		p.d.Content += p.message.raw
	}
	return true
}

// mayBeHeader tells whether what is held begins as a header does.
func (p *Parser) mayBeHeader() bool {
	text := string(p.held)
	for _, mark := range []string{harmonyStart, harmonyChannel, harmonyTo} {
		if strings.HasPrefix(text, mark) || strings.HasPrefix(mark, text) {
			return true
		}
	}
	return false
}

// between is text that no header belongs to.
func (p *Parser) between(final bool) bool {
	i, _ := p.firstOf(harmonyStart, harmonyChannel)
	if i >= 0 {
		p.d.Content += p.take(i)
		p.state = (*Parser).header
		return true
	}
	p.d.Content += p.take(p.certain(final, harmonyStart, harmonyChannel))
	return false
}

// body is a message of thinking, or for the user.
func (p *Parser) body(final bool) bool {
	i, end := p.firstOf(harmonyEnds...)
	if i < 0 {
		p.tell(p.take(p.certain(final, harmonyEnds...)))
		return false
	}
	p.tell(p.take(i))
	p.endMessage(end)
	return true
}

// endMessage takes the end of a message, unless it begins the next.
func (p *Parser) endMessage(end string) string {
	p.state = (*Parser).header
	if end == harmonyStart || end == harmonyChannel {
		return ""
	}
	return p.take(len(end))
}

// tell adds text of a message; a line break divides it from an earlier one of its kind.
func (p *Parser) tell(text string) {
	if text == "" {
		return
	}
	to, earlier := &p.d.Content, &p.told.content
	if p.message.analysis {
		to, earlier = &p.d.Reasoning, &p.told.reasoning
	}
	if *earlier && !p.message.seen {
		text = "\n" + text
	}
	*to += text
	*earlier, p.message.seen = true, true
}

// harmonyCall is a message that calls a function. Without valid arguments it is content, as written.
func (p *Parser) harmonyCall(final bool) bool {
	i, end := p.firstOf(harmonyEnds...)
	if i < 0 {
		if !final {
			return false
		}
		i = len(p.held)
	}
	args := p.take(i)
	mark := p.endMessage(end)
	if given := strings.TrimSpace(args); strings.HasPrefix(given, "{") && json.Valid([]byte(given)) {
		p.call([]Call{{Name: p.message.function, Arguments: given}})
	} else {
		p.d.Content += p.message.raw + args + mark
	}
	return len(p.held) > 0
}

// firstOf is the first place of any of marks, -1 if there is none.
func (p *Parser) firstOf(marks ...string) (first int, which string) {
	first = -1
	from := max(0, p.looked-len(harmonyChannel))
	for _, mark := range marks {
		if i := bytes.Index(p.held[from:], []byte(mark)); i >= 0 && (first < 0 || from+i < first) {
			first, which = from+i, mark
		}
	}
	if p.looked = len(p.held); first >= 0 {
		p.looked = 0 // there may be others behind it
	}
	return first, which
}

// certain is the length of what is held without an end that may begin one of marks.
func (p *Parser) certain(final bool, marks ...string) int {
	if final {
		return len(p.held)
	}
	return len(p.held) - partial(p.held, marks...)
}
