package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// expr reads a conditional expression, the whole grammar but bare tuples:
//
//	expr    = or [ "if" or [ "else" expr ] ]
//	or      = and { "or" and }           and = not { "and" not }          not = "not" not | compare
//	compare = sum { ("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in") sum }
//	sum     = concat { ("+" | "-") concat }     concat = product { "~" product }
//	product = power { ("*" | "/" | "//" | "%") power }     power = unary { "**" unary }
//	unary   = ("-" | "+") unary | primary {postfix}, then filters and tests
func (p *parser) expr() node {
	defer p.nest()()
	x := p.or()
	for p.takeName("if") {
		test := p.or()
		var alt node
		if p.takeName("else") {
			alt = p.expr()
		}
		x = &condNode{test, x, alt}
	}
	return x
}

// tuple reads an expression, or several parted by commas; without cond its members are no conditional expressions, so
// that "for x in y if z" keeps its filter.
func (p *parser) tuple(cond bool) node {
	read := p.or
	if cond {
		read = p.expr
	}
	x := read()
	if !p.isOp(",") {
		return x
	}
	t := &tupleNode{items: []node{x}}
	for p.takeOp(",") {
		if p.endsTuple() {
			break
		}
		t.items = append(t.items, read())
	}
	return t
}

func (p *parser) endsTuple() bool {
	k := p.peek().kind
	return k == tokenClose || k == tokenPrinted || p.isOp(")") || p.isName("in") || p.isName("if") ||
		p.isName("recursive")
}

func (p *parser) or() node {
	x := p.and()
	for p.takeName("or") {
		x = &binaryNode{"or", x, p.and()}
	}
	return x
}

func (p *parser) and() node {
	x := p.not()
	for p.takeName("and") {
		x = &binaryNode{"and", x, p.not()}
	}
	return x
}

func (p *parser) not() node {
	if p.isName("not") {
		defer p.nest()()
		p.next()
		return &unaryNode{"not", p.not()}
	}
	return p.compare()
}

func (p *parser) compare() node {
	c := &compareNode{x: p.sum()}
	for {
		op := p.compareOp()
		if op == "" {
			break
		}
		c.ops = append(c.ops, op)
		c.ys = append(c.ys, p.sum())
	}
	if len(c.ops) == 0 {
		return c.x
	}
	return c
}

// compareOp takes a comparison operator, "" if none is next.
func (p *parser) compareOp() string {
	t := p.peek()
	switch {
	case t.kind == tokenOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
		return p.next().text
	case p.takeName("in"):
		return "in"
	case p.isName("not") && p.tokens[1].kind == tokenName && p.tokens[1].text == "in":
		p.next()
		p.next()
		return "not in"
	}
	return ""
}

// chain reads operands joined by some operators, left to right.
func (p *parser) chain(operand func() node, ops ...string) node {
	x := operand()
	for p.peek().kind == tokenOp && slices.Contains(ops, p.peek().text) {
		op := p.next().text
		x = &binaryNode{op, x, operand()}
	}
	return x
}

func (p *parser) sum() node     { return p.chain(p.concat, "+", "-") }
func (p *parser) concat() node  { return p.chain(p.product, "~") }
func (p *parser) product() node { return p.chain(p.power, "*", "/", "//", "%") }
func (p *parser) power() node   { return p.chain(func() node { return p.unary(true) }, "**") }

// unary reads a signed or plain value; filters bind looser than a sign and tighter than any operator.
func (p *parser) unary(filters bool) node {
	defer p.nest()()
	var x node
	if t := p.peek(); t.kind == tokenOp && (t.text == "-" || t.text == "+") {
		p.next()
		x = &unaryNode{t.text, p.unary(false)}
	} else {
		x = p.postfix(p.primary())
	}
	if filters {
		x = p.filtered(x)
	}
	return x
}

func (p *parser) primary() node {
	t := p.next()
	switch {
	case t.kind == tokenName:
		return p.name(t.text)
	case t.kind == tokenString:
		text := t.text
		for p.peek().kind == tokenString { // neighbours join, as in Python
			text += p.next().text
		}
		return &constNode{text}
	case t.kind == tokenInt:
		return &constNode{intValue(t)}
	case t.kind == tokenFloat:
		v, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			fail(t.line, "number %s is too large", t.text)
		}
		return &constNode{v}
	case t.kind == tokenOp && t.text == "(":
		return p.parenthesis()
	case t.kind == tokenOp && t.text == "[":
		return &listNode{p.items("]")}
	case t.kind == tokenOp && t.text == "{":
		return p.dict()
	}
	if t.kind != tokenEnd {
		p.tokens = append([]token{t}, p.tokens...)
	}
	p.unexpected("an expression")
	return nil
}

// intValue is the value of an int; zeros may lead only a zero, as in Python.
func intValue(t token) int64 {
	v, err := strconv.ParseInt(t.text, 0, 64)
	if plain := strings.TrimLeft(t.text, "0"); err != nil || plain != "" && plain[0] >= '1' && plain[0] <= '9' &&
		plain != t.text {
		fail(t.line, "number %s is too large or has leading zeros", t.text)
	}
	return v
}

func (p *parser) name(text string) node {
	switch text {
	case "true", "True":
		return &constNode{true}
	case "false", "False":
		return &constNode{false}
	case "none", "None":
		return &constNode{nil}
	case "caller":
		p.caller = true
	case "varargs", "kwargs":
		if p.macros > 0 {
			fail(p.peek().line, "%s of a macro is not supported", text)
		}
	}
	return &nameNode{text}
}

func (p *parser) parenthesis() node {
	if p.takeOp(")") {
		return &tupleNode{}
	}
	x := p.tuple(true)
	p.wantOp(")")
	return x
}

// items reads expressions up to a closing bracket.
func (p *parser) items(end string) (list []node) {
	for !p.takeOp(end) {
		if len(list) > 0 {
			p.wantOp(",")
			if p.takeOp(end) {
				break
			}
		}
		list = append(list, p.expr())
	}
	return list
}

func (p *parser) dict() node {
	d := &dictNode{}
	for !p.takeOp("}") {
		if len(d.keys) > 0 {
			p.wantOp(",")
			if p.takeOp("}") {
				break
			}
		}
		d.keys = append(d.keys, p.expr())
		p.wantOp(":")
		d.values = append(d.values, p.expr())
	}
	return d
}
