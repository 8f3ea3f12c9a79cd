package jinja

// postfix reads attributes, subscripts and calls.
func (p *parser) postfix(x node) node {
	for {
		switch {
		case p.takeOp("."):
			x = p.attribute(x)
		case p.takeOp("["):
			x = p.subscript(x)
		case p.takeOp("("):
			x = &callNode{x, p.args()}
		default:
			return x
		}
	}
}

// attribute reads a name, or a number, which is an index: x.0.
func (p *parser) attribute(x node) node {
	if t := p.peek(); t.kind == tokenInt {
		p.next()
		return &indexNode{x, &constNode{intValue(t)}}
	}
	return &attrNode{x, p.want(tokenName, "a name").text}
}

// subscript reads i], or a slice start:stop:step].
func (p *parser) subscript(x node) node {
	s := &sliceNode{x: x}
	if !p.isOp(":") {
		i := p.expr()
		if p.takeOp("]") {
			return &indexNode{x, i}
		}
		s.start = i
	}
	p.wantOp(":")
	if !p.isOp("]") && !p.isOp(":") {
		s.stop = p.expr()
	}
	if p.takeOp(":") && !p.isOp("]") {
		s.step = p.expr()
	}
	p.wantOp("]")
	return s
}

// args reads a, b=c) of a call.
func (p *parser) args() (a args) {
	for n := 0; !p.takeOp(")"); n++ {
		if n > 0 {
			p.wantOp(",")
			if p.takeOp(")") {
				break
			}
		}
		if p.isOp("*") || p.isOp("**") {
			fail(p.peek().line, "unpacked arguments are not supported")
		}
		if t := p.peek(); t.kind == tokenName && p.tokens[1].kind == tokenOp && p.tokens[1].text == "=" {
			p.next()
			p.next()
			a.names = append(a.names, t.text)
			a.named = append(a.named, p.expr())
			continue
		}
		if len(a.names) > 0 {
			fail(p.peek().line, "a positional argument follows a named one")
		}
		a.list = append(a.list, p.expr())
	}
	return a
}

// filtered reads filters, tests and calls behind a value.
func (p *parser) filtered(x node) node {
	for {
		switch {
		case p.takeOp("|"):
			x = &filterNode{x, p.filterCall()}
		case p.takeName("is"):
			x = p.test(x)
		case p.takeOp("("):
			x = &callNode{x, p.args()}
		default:
			return x
		}
	}
}

func (p *parser) filterCall() filterCall {
	f := filterCall{name: p.want(tokenName, "the name of a filter").text}
	if p.takeOp("(") {
		f.args = p.args()
	}
	return f
}

// test reads [not] name, with arguments in parentheses or one without.
func (p *parser) test(x node) node {
	negated := p.takeName("not")
	n := &testNode{x: x, name: p.want(tokenName, "the name of a test").text}
	if p.takeOp("(") {
		n.args = p.args()
	} else if p.startsArgument() {
		if p.isName("is") {
			fail(p.peek().line, "tests cannot be chained with is")
		}
		n.args.list = []node{p.postfix(p.primary())}
	}
	if negated {
		return &unaryNode{"not", n}
	}
	return n
}

func (p *parser) startsArgument() bool {
	t := p.peek()
	switch t.kind {
	case tokenString, tokenInt, tokenFloat:
		return true
	case tokenName:
		return t.text != "else" && t.text != "or" && t.text != "and" && t.text != "if" && t.text != "in" &&
			t.text != "not"
	}
	return p.isOp("[") || p.isOp("{")
}
