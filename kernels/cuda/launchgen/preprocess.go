package main

import (
	"slices"
	"strconv"
	"strings"
)

// macro is a #define.
type macro struct {
	function bool
	params   []string
	variadic bool
	body     []token
}

// defined are the macros that the compiler sets for the architecture with the most kernels, sm_90a.
var defined = []string{"__CUDA_ARCH_FEAT_SM90_ALL"}

// Bounds of a source: macros that are expanded, and tokens that one leaves.
const (
	mostExpansions = 1 << 14
	mostTokens     = 1 << 16
)

// preprocessor expands a source and what it includes.
type preprocessor struct {
	read       func(name string) (string, error)
	macros     map[string]*macro
	included   map[string]bool
	pending    []token // of lines since the last directive
	out        []token
	expansions int
	hints      map[string][]hint // by file
}

// hint is a comment //launch:family of a source.
type hint struct {
	family   string
	prefixes []string
	at       position
}

// preprocess gives the expanded tokens of a source. Those of a macro are where it was invoked.
func preprocess(name string, read func(string) (string, error)) (*preprocessor, error) {
	p := &preprocessor{read: read, macros: map[string]*macro{}, included: map[string]bool{}, hints: map[string][]hint{}}
	for _, d := range defined {
		p.macros[d] = &macro{body: []token{{kind: number, text: "1"}}}
	}
	source, err := read(name)
	if err != nil {
		return nil, err
	}
	if err := p.file(name, source); err != nil {
		return nil, err
	}
	return p, p.flush()
}

// condition is an #if that is open.
type condition struct {
	at                position
	outer, taken, now bool // lines outside count; a branch was taken; this one is
	otherwise         bool // after #else
}

func (p *preprocessor) file(name, source string) error {
	all, err := lines(name, source)
	if err != nil {
		return err
	}
	for i, s := range strings.Split(source, "\n") {
		if words := strings.Fields(s); len(words) > 0 && words[0] == "//launch:family" {
			at := position{name, i + 1}
			if len(words) < 3 {
				return at.errorf("want //launch:family NAME PREFIX...")
			}
			p.hints[name] = append(p.hints[name], hint{words[1], words[2:], at})
		}
	}
	var open []condition
	counts := func() bool { return len(open) == 0 || open[len(open)-1].now }
	for _, l := range all {
		tokens := l.tokens()
		if len(tokens) == 0 {
			continue
		}
		if !tokens[0].is("#") {
			if counts() {
				p.pending = append(p.pending, tokens...)
			}
			continue
		}
		if len(tokens) == 1 {
			continue
		}
		directive, rest := tokens[1].text, tokens[2:]
		switch directive {
		case "if", "ifdef", "ifndef":
			c := condition{at: l.at, outer: counts()}
			if c.outer {
				if c.now, err = p.holds(l.at, directive, rest); err != nil {
					return err
				}
			}
			c.taken = c.now
			open = append(open, c)
			continue
		case "elif", "else", "endif":
			if len(open) == 0 || directive != "endif" && open[len(open)-1].otherwise {
				return l.at.errorf("#%s without an #if", directive)
			}
			c := &open[len(open)-1]
			switch {
			case directive == "endif":
				open = open[:len(open)-1]
			case directive == "else":
				c.now, c.otherwise = c.outer && !c.taken, true
			case c.outer && !c.taken:
				if c.now, err = p.holds(l.at, "if", rest); err != nil {
					return err
				}
				c.taken = c.now
			default:
				c.now = false
			}
			continue
		}
		if !counts() {
			continue
		}
		if err := p.flush(); err != nil {
			return err
		}
		if err := p.directive(l, directive, rest); err != nil {
			return err
		}
	}
	if len(open) > 0 {
		return open[len(open)-1].at.errorf("#if without an #endif")
	}
	return nil
}

func (p *preprocessor) directive(l line, name string, rest []token) error {
	switch name {
	case "pragma":
		return nil
	case "define":
		return p.define(l, rest)
	case "undef":
		if len(rest) != 1 || rest[0].kind != identifier {
			return l.at.errorf("#undef of no name")
		}
		delete(p.macros, rest[0].text)
		return nil
	case "include":
		if len(rest) != 1 || rest[0].kind != text || len(rest[0].text) < 2 {
			return l.at.errorf(`want #include "NAME"`)
		}
		header := rest[0].text[1 : len(rest[0].text)-1]
		if p.included[header] { // all have #pragma once
			return nil
		}
		p.included[header] = true
		source, err := p.read(header)
		if err != nil {
			return l.at.errorf("%v", err)
		}
		if err := p.file(header, source); err != nil {
			return err
		}
		return p.flush()
	}
	return l.at.errorf("directive #%s is not supported", name)
}

func (p *preprocessor) define(l line, rest []token) error {
	if len(rest) == 0 || rest[0].kind != identifier {
		return l.at.errorf("#define of no name")
	}
	name, m := rest[0].text, &macro{}
	// A parameter list begins right after the name.
	_, after, _ := strings.Cut(l.text, "define")
	if strings.HasPrefix(strings.TrimSpace(after), name+"(") {
		m.function = true
		i := 2
		for ; i < len(rest) && !rest[i].is(")"); i++ {
			switch {
			case rest[i].is("..."):
				m.variadic = true
				m.params = append(m.params, "__VA_ARGS__")
			case rest[i].kind == identifier && !m.variadic:
				m.params = append(m.params, rest[i].text)
			case !rest[i].is(","):
				return l.at.errorf("macro %s: parameter %s", name, rest[i].text)
			}
		}
		if i == len(rest) {
			return l.at.errorf("macro %s: parameters without an end", name)
		}
		rest = rest[i:]
	}
	m.body = rest[1:]
	if n := len(m.body); n > 0 && (m.body[0].is("##") || m.body[n-1].is("##")) {
		return l.at.errorf("macro %s: ## joins nothing", name)
	}
	p.macros[name] = m
	return nil
}

// holds evaluates a condition: names that are defined, joined by ! && ||.
func (p *preprocessor) holds(at position, directive string, rest []token) (bool, error) {
	if directive != "if" {
		if len(rest) != 1 || rest[0].kind != identifier {
			return false, at.errorf("#%s of no name", directive)
		}
		return (p.macros[rest[0].text] != nil) == (directive == "ifdef"), nil
	}
	var or func() (bool, error)
	bad := func() (bool, error) { return false, at.errorf("#if: want defined(NAME), joined by !, && and ||") }
	take := func(s string) bool {
		if len(rest) == 0 || !rest[0].is(s) {
			return false
		}
		rest = rest[1:]
		return true
	}
	depth := 0
	var unary func() (bool, error)
	unary = func() (v bool, err error) {
		if depth++; depth > 100 {
			return bad()
		}
		defer func() { depth-- }()
		switch {
		case take("!"):
			v, err = unary()
			return !v, err
		case take("("):
			if v, err = or(); err == nil && !take(")") {
				return bad()
			}
			return v, err
		case take("defined"):
			closed := take("(")
			if len(rest) == 0 || rest[0].kind != identifier {
				return bad()
			}
			v = p.macros[rest[0].text] != nil
			rest = rest[1:]
			if closed && !take(")") {
				return bad()
			}
			return v, nil
		}
		return bad()
	}
	or = func() (bool, error) {
		v, err := unary()
		for err == nil {
			and := take("&&")
			if !and && !take("||") {
				break
			}
			var w bool
			w, err = unary() // no source mixes the two
			if and {
				v = v && w
			} else {
				v = v || w
			}
		}
		return v, err
	}
	v, err := or()
	if err == nil && len(rest) > 0 {
		return bad()
	}
	return v, err
}

// flush expands what is pending.
func (p *preprocessor) flush() error {
	out, err := p.expand(p.pending)
	p.out, p.pending = append(p.out, out...), nil
	return err
}

// expand is the algorithm of Prosser: each token knows the macros that it came from.
func (p *preprocessor) expand(tokens []token) (out []token, err error) {
	rest := slices.Clone(tokens)
	slices.Reverse(rest) // the next token is the last
	for len(rest) > 0 {
		t := rest[len(rest)-1]
		rest = rest[:len(rest)-1]
		m := p.macros[t.text]
		if t.kind != identifier || m == nil || slices.Contains(t.hide, t.text) ||
			m.function && (len(rest) == 0 || !rest[len(rest)-1].is("(")) {
			out = append(out, t)
			continue
		}
		if p.expansions++; p.expansions > mostExpansions {
			return nil, t.at.errorf("macro %s: too many expansions", t.text)
		}
		var arguments [][]token
		if m.function {
			if arguments, rest, err = p.arguments(t, m, rest); err != nil {
				return nil, err
			}
		}
		body, err := p.substitute(t, m, arguments)
		if err != nil {
			return nil, err
		}
		if len(body) > mostTokens {
			return nil, t.at.errorf("macro %s: too many tokens", t.text)
		}
		for _, b := range slices.Backward(body) {
			b.at, b.hide = t.at, append(slices.Concat(b.hide, t.hide), t.text)
			rest = append(rest, b)
		}
	}
	return out, nil
}

// arguments takes those of an invocation from the reversed tokens that follow it.
func (p *preprocessor) arguments(t token, m *macro, rest []token) (arguments [][]token, after []token, err error) {
	depth, argument := 0, []token(nil)
	for i := len(rest) - 1; i >= 0; i-- {
		a := rest[i]
		switch {
		case a.is("("):
			if depth++; depth == 1 {
				continue
			}
		case a.is(")"):
			if depth--; depth > 0 {
				break
			}
			if !m.variadic || len(arguments) < len(m.params) {
				arguments = append(arguments, argument)
			}
			if len(m.params) == 0 && len(argument) == 0 {
				arguments = nil
			}
			if m.variadic && len(arguments) == len(m.params)-1 {
				arguments = append(arguments, nil)
			}
			if len(arguments) != len(m.params) {
				return nil, nil, t.at.errorf("macro %s takes %d arguments, not %d", t.text, len(m.params),
					len(arguments))
			}
			return arguments, rest[:i], nil
		case a.is(",") && depth == 1 && !(m.variadic && len(arguments) == len(m.params)-1):
			arguments, argument = append(arguments, argument), nil
			continue
		}
		argument = append(argument, a)
	}
	return nil, nil, t.at.errorf("macro %s: arguments without an end", t.text)
}

// substitute is the body of a macro with its arguments: expanded, except next to # and ##.
func (p *preprocessor) substitute(t token, m *macro, arguments [][]token) (out []token, err error) {
	argument := func(b token) ([]token, bool) {
		if i := slices.Index(m.params, b.text); b.kind == identifier && i >= 0 && m.function {
			return arguments[i], true
		}
		return []token{b}, false
	}
	for i := 0; i < len(m.body); i++ {
		b := m.body[i]
		switch {
		case b.is("#") && m.function && i+1 < len(m.body):
			i++
			a, _ := argument(m.body[i])
			out = append(out, token{kind: text, text: strconv.Quote(join(a)), at: t.at})
		case b.is("##"):
			i++
			right, _ := argument(m.body[i])
			if before, _ := argument(m.body[i-2]); len(right) == 0 || len(before) == 0 || len(out) == 0 {
				return nil, t.at.errorf("macro %s: an empty argument next to ##", t.text)
			}
			left := out[len(out)-1]
			joined := line{left.text + right[0].text, t.at}.tokens()
			if len(joined) != 1 {
				return nil, t.at.errorf("macro %s: %s ## %s is no token", t.text, left.text, right[0].text)
			}
			out = append(append(out[:len(out)-1:len(out)-1], joined[0]), right[1:]...)
		default:
			a, is := argument(b)
			if is && !(i+1 < len(m.body) && m.body[i+1].is("##")) {
				if a, err = p.expand(a); err != nil {
					return nil, err
				}
			}
			out = append(out, a...)
		}
		if len(out) > mostTokens {
			return nil, t.at.errorf("macro %s: too many tokens", t.text)
		}
	}
	return out, nil
}
