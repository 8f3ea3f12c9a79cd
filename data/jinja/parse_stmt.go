package jinja

// statements reads each kind of block after its name.
var statements map[string]func(*parser, line) stmt

func init() { // a variable's initialiser may not refer to itself through body
	statements = map[string]func(*parser, line) stmt{
		"if":         (*parser).ifBlock,
		"for":        (*parser).forBlock,
		"set":        (*parser).set,
		"macro":      (*parser).macro,
		"call":       (*parser).call,
		"filter":     (*parser).filterBlock,
		"with":       (*parser).with,
		"generation": (*parser).generation,
		"break":      func(p *parser, l line) stmt { return p.flow(l, flowBreak) },
		"continue":   func(p *parser, l line) stmt { return p.flow(l, flowContinue) },
	}
}

// ifBlock reads from the condition on; an elif is an if in the alternative.
func (p *parser) ifBlock(l line) stmt {
	defer p.nest()()
	s := ifStmt{line: l, test: p.tuple(false)}
	p.close()
	var end string
	s.then, end = p.body("elif", "else", "endif")
	switch end {
	case "elif":
		s.alt = []stmt{p.ifBlock(line(p.peek().line))}
		return s
	case "else":
		p.close()
		s.alt = p.block("endif")
		return s
	}
	p.close()
	return s
}

func (p *parser) forBlock(l line) stmt {
	s := forStmt{line: l}
	s.targets, s.unpack = p.names()
	if !p.takeName("in") {
		p.unexpected("in")
	}
	s.in = p.tuple(false)
	if p.takeName("if") {
		s.filter = p.expr()
	}
	if p.isName("recursive") {
		fail(int(l), "recursive loops are not supported")
	}
	p.close()
	p.loops++
	var end string
	s.body, end = p.body("else", "endfor")
	p.loops--
	p.close()
	if end == "else" {
		s.alt = p.block("endfor")
	}
	return s
}

// names reads the targets of a loop: a, or a, b.
func (p *parser) names() (names []string, unpack bool) {
	paren := p.takeOp("(")
	for {
		names = append(names, p.want(tokenName, "a name").text)
		if !p.takeOp(",") {
			break
		}
		unpack = true
		if p.peek().kind != tokenName || p.isName("in") {
			break
		}
	}
	if paren {
		p.wantOp(")")
	}
	return names, unpack
}

func (p *parser) set(l line) stmt {
	targets := []target{p.target()}
	unpack := false
	for p.takeOp(",") {
		targets, unpack = append(targets, p.target()), true
	}
	if p.takeOp("=") {
		value := p.tuple(true)
		p.close()
		return setStmt{l, targets, unpack, value}
	}
	if unpack {
		p.unexpected("=")
	}
	s := setBlockStmt{line: l, target: targets[0], filters: p.filters()}
	p.close()
	s.body = p.block("endset")
	return s
}

func (p *parser) target() target {
	t := target{name: p.want(tokenName, "a name").text}
	if p.takeOp(".") {
		t.attr = p.want(tokenName, "a name").text
	}
	switch t.name {
	case "true", "false", "none", "True", "False", "None":
		fail(p.peek().line, "%s cannot be set", t.name)
	}
	return t
}

// filters reads |a|b(c).
func (p *parser) filters() (list []filterCall) {
	for p.takeOp("|") {
		list = append(list, p.filterCall())
	}
	return list
}

func (p *parser) macro(l line) stmt {
	m := &macro{name: p.want(tokenName, "the macro's name").text}
	p.wantOp("(")
	p.params(m)
	p.close()
	p.macroBody(m, "endmacro")
	return macroStmt{l, m}
}

// params reads a, b=1) of a macro.
func (p *parser) params(m *macro) {
	for !p.takeOp(")") {
		if len(m.params) > 0 {
			p.wantOp(",")
		}
		m.params = append(m.params, p.want(tokenName, "a parameter").text)
		if p.takeOp("=") {
			m.defaults = append(m.defaults, p.expr())
		} else if len(m.defaults) > 0 {
			fail(p.peek().line, "parameter %s needs a default, as the one before it has one", m.params[len(m.params)-1])
		}
	}
}

// macroBody reads a macro's body. Loops around the macro are not loops of it.
func (p *parser) macroBody(m *macro, end string) {
	outerCaller, outerLoops := p.caller, p.loops
	p.caller, p.loops = false, 0
	p.macros++
	m.body = p.block(end)
	p.macros--
	m.caller = p.caller
	p.caller, p.loops = outerCaller, outerLoops
}

func (p *parser) call(l line) stmt {
	m := &macro{name: "caller"}
	if p.takeOp("(") {
		p.params(m)
	}
	call, ok := p.expr().(*callNode)
	if !ok {
		fail(int(l), "a call block needs a call")
	}
	p.close()
	p.macroBody(m, "endcall")
	return callStmt{l, m, call}
}

func (p *parser) filterBlock(l line) stmt {
	s := filterStmt{line: l, filters: append([]filterCall{p.filterCall()}, p.filters()...)}
	p.close()
	s.body = p.block("endfilter")
	return s
}

func (p *parser) with(l line) stmt {
	s := withStmt{line: l}
	for p.peek().kind != tokenClose {
		if len(s.names) > 0 {
			p.wantOp(",")
		}
		s.names = append(s.names, p.want(tokenName, "a name").text)
		p.wantOp("=")
		s.values = append(s.values, p.expr())
	}
	p.close()
	s.body = p.block("endwith")
	return s
}

func (p *parser) generation(l line) stmt {
	p.close()
	outer := p.loops
	p.loops = 0 // to Python its body is a function
	defer func() { p.loops = outer }()
	return generationStmt{l, p.block("endgeneration")}
}

func (p *parser) flow(l line, f flow) stmt {
	if p.loops == 0 {
		fail(int(l), "break or continue outside a loop")
	}
	p.close()
	return flowStmt{l, f}
}
