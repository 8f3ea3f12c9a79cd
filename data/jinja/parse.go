package jinja

import "slices"

// parser is a recursive descent over the tokens, in the shape of jinja2's own.
type parser struct {
	tokens []token
	depth  int
	caller bool // the macro being read names "caller"
	loops  int  // loops around this place, inside the innermost macro
	macros int  // macros around this place
}

func newParser(tokens []token) *parser { return &parser{tokens: tokens} }

func (p *parser) peek() token { return p.tokens[0] }

// next takes a token; the end stays.
func (p *parser) next() token {
	t := p.tokens[0]
	if t.kind != tokenEnd {
		p.tokens = p.tokens[1:]
	}
	return t
}

func (p *parser) isOp(text string) bool { return p.peek().kind == tokenOp && p.peek().text == text }

func (p *parser) isName(text string) bool { return p.peek().kind == tokenName && p.peek().text == text }

// takeOp takes an operator if it is next.
func (p *parser) takeOp(text string) bool {
	ok := p.isOp(text)
	if ok {
		p.next()
	}
	return ok
}

func (p *parser) takeName(text string) bool {
	ok := p.isName(text)
	if ok {
		p.next()
	}
	return ok
}

func (p *parser) wantOp(text string) {
	if !p.takeOp(text) {
		p.unexpected(text)
	}
}

func (p *parser) want(k kind, what string) token {
	t := p.next()
	if t.kind != k {
		p.tokens = append([]token{t}, p.tokens...)
		p.unexpected(what)
	}
	return t
}

func (p *parser) unexpected(want string) {
	t := p.peek()
	found := map[kind]string{tokenEnd: "the end", tokenText: "text", tokenOpen: "{%", tokenClose: "%}",
		tokenPrint: "{{", tokenPrinted: "}}"}[t.kind]
	if found == "" {
		found = t.text
	}
	fail(t.line, "found %q, want %s", found, want)
}

// nest counts a level of the source and returns what undoes it.
func (p *parser) nest() func() {
	if p.depth++; p.depth > maxDepth {
		fail(p.peek().line, "nested more than %d deep", maxDepth)
	}
	return func() { p.depth-- }
}

func (p *parser) template() []stmt {
	body, _ := p.body()
	return body
}

// body reads statements up to a block tag named by one of ends, which is taken together with its {%; at the end of the
// source without ends.
func (p *parser) body(ends ...string) (list []stmt, end string) {
	defer p.nest()()
	for {
		switch t := p.next(); t.kind {
		case tokenEnd:
			if len(ends) > 0 {
				fail(t.line, "the template ends where %s is missing", ends[len(ends)-1])
			}
			return list, ""
		case tokenText:
			list = append(list, textStmt{line(t.line), t.text})
		case tokenPrint:
			list = append(list, printStmt{line(t.line), p.tuple(true)})
			p.want(tokenPrinted, "}}")
		case tokenOpen:
			name := p.want(tokenName, "the name of a block").text
			if slices.Contains(ends, name) {
				return list, name
			}
			read, ok := statements[name]
			if !ok {
				fail(t.line, "block %q is not supported", name)
			}
			list = append(list, read(p, line(t.line)))
		}
	}
}

// close ends a tag.
func (p *parser) close() { p.want(tokenClose, "%}") }

// block reads a body up to one end tag.
func (p *parser) block(end string) []stmt {
	list, _ := p.body(end)
	p.close()
	return list
}
