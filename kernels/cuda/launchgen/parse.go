package main

import (
	"slices"
	"strconv"
	"strings"
)

// unit is a source with what it includes.
type unit struct {
	file     string
	kernels  []kernel
	structs  map[string]*structure
	scalars  map[string]string // typedefs of scalars: u16
	integers map[string]constant
	hints    []hint
}

// kernel is an extern "C" __global__ function.
type kernel struct {
	name   string
	at     position
	params []parameter
}

// parameter is one of a kernel, or a field of a struct.
type parameter struct {
	name    string
	element string     // C type without typedefs and const
	pointer bool       // to elements
	record  *structure // the element, where it is a struct
	count   int        // of an array; -1: none
}

// structure is a struct, read when a kernel's parameter has it.
type structure struct {
	name   string
	at     position
	align  int
	body   []token
	fields []parameter
	read   bool
}

// constant is a constexpr integer.
type constant struct {
	value int64
	at    position
}

// reader takes the declarations of an expanded source one after the other.
type reader struct {
	*unit
	rest []token
	last position
}

// begins are the words that a declaration may begin with which declares neither kernel, struct nor constant.
var begins = []string{"__device__", "__constant__", "static", "inline", "using", "enum", "static_assert", "extern"}

func parse(file string, read func(string) (string, error)) (*unit, error) {
	p, err := preprocess(file, read)
	if err != nil {
		return nil, err
	}
	r := &reader{unit: &unit{file: file, structs: map[string]*structure{}, scalars: map[string]string{},
		integers: map[string]constant{}, hints: p.hints[file]}, rest: p.out, last: position{file, 1}}
	for len(r.rest) > 0 {
		if err := r.declaration(); err != nil {
			return nil, err
		}
	}
	for _, k := range r.kernels {
		for i := range k.params {
			if err := r.resolve(&k.params[i], k.at); err != nil {
				return nil, err
			}
		}
	}
	return r.unit, nil
}

// next takes a token: none behind the last.
func (r *reader) next() token {
	if len(r.rest) == 0 {
		return token{kind: punctuation, at: r.last}
	}
	t := r.rest[0]
	r.rest, r.last = r.rest[1:], t.at
	return t
}

func (r *reader) peek(i int) token {
	if i >= len(r.rest) {
		return token{kind: punctuation, at: r.last}
	}
	return r.rest[i]
}

// block takes a ( or { or [ with all up to its end, and returns what is between.
func (r *reader) block() ([]token, error) {
	open := r.next()
	from, depth := r.rest, 1
	for i, t := range from {
		switch {
		case t.is("(") || t.is("{") || t.is("["):
			depth++
		case t.is(")") || t.is("}") || t.is("]"):
			depth--
		}
		if depth == 0 {
			r.rest, r.last = from[i+1:], t.at
			return from[:i], nil
		}
	}
	return nil, open.at.errorf("%s without an end", open.text)
}

// skip takes a declaration up to its ; or the end of its body.
func (r *reader) skip() error {
	for at := r.peek(0).at; ; {
		switch t := r.peek(0); {
		case len(r.rest) == 0:
			return at.errorf("declaration without an end")
		case t.is(";"):
			r.next()
			return nil
		case t.is("(") || t.is("["):
			if _, err := r.block(); err != nil {
				return err
			}
		case t.is("{"):
			if _, err := r.block(); err != nil {
				return err
			}
			if r.peek(0).is(";") {
				r.next()
			}
			return nil
		default:
			r.next()
		}
	}
}

func (r *reader) declaration() error {
	switch t := r.peek(0); {
	case t.is(";"):
		r.next()
		return nil
	case t.is("extern") && r.peek(1).text == `"C"`:
		return r.kernel()
	case t.is("__global__"):
		return t.at.errorf(`kernel without extern "C"`)
	case t.is("template"):
		return r.template()
	case t.is("struct"):
		return r.structure()
	case t.is("constexpr"):
		return r.constants()
	case t.is("typedef"):
		return r.typedef()
	case slices.Contains(begins, t.text):
		return r.skip()
	default:
		return t.at.errorf("%s begins no declaration that launchgen reads: is it a macro that is not defined?", t.text)
	}
}

func (r *reader) template() error {
	at := r.next().at
	if !r.peek(0).is("<") {
		return at.errorf("template without <")
	}
	for depth := 0; ; {
		t := r.next()
		switch t.text {
		case "<":
			depth++
		case ">":
			depth--
		case ">>":
			depth -= 2
		case "":
			return at.errorf("template without an end")
		case "(":
			r.rest = append([]token{t}, r.rest...)
			if _, err := r.block(); err != nil {
				return err
			}
		}
		if depth <= 0 {
			break
		}
	}
	return r.skip()
}

// kernel reads extern "C" __global__ void [__launch_bounds__(...)] NAME(PARAMETERS) {...}.
func (r *reader) kernel() error {
	at := r.next().at
	r.next() // "C"
	if !r.peek(0).is("__global__") {
		return at.errorf(`extern "C" of no __global__ function`)
	}
	r.next()
	k := kernel{at: at}
	for !r.peek(0).is("(") {
		t := r.next()
		switch {
		case t.is("__launch_bounds__"):
			if !r.peek(0).is("(") {
				return at.errorf("__launch_bounds__ without numbers")
			}
			if _, err := r.block(); err != nil {
				return err
			}
		case t.is("void"):
		case t.kind == identifier && k.name == "" && r.peek(0).is("("):
			k.name = t.text
		default:
			return at.errorf("kernel: %q is not supported before its parameters", t.text)
		}
	}
	if k.name == "" {
		return at.errorf("kernel without a name")
	}
	list, err := r.block()
	if err != nil {
		return err
	}
	for _, p := range split(list) {
		parsed, err := r.parameter(p, at)
		if err != nil {
			return err
		}
		k.params = append(k.params, parsed)
	}
	if !r.peek(0).is("{") && !r.peek(0).is(";") {
		return at.errorf("kernel %s without a body", k.name)
	}
	r.kernels = append(r.kernels, k)
	return r.skip()
}

// split cuts at commas outside of brackets.
func split(list []token) (parts [][]token) {
	depth, from := 0, 0
	for i, t := range list {
		switch t.text {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
		case ",":
			if depth == 0 {
				parts = append(parts, list[from:i])
				from = i + 1
			}
		}
	}
	if len(list) > 0 {
		parts = append(parts, list[from:])
	}
	return parts
}

// qualifiers do not change how a parameter lies in memory.
var qualifiers = []string{"const", "volatile", "__grid_constant__", "__restrict__"}

// parameter reads TYPE NAME, TYPE* NAME or, of a field, TYPE NAME[COUNT].
func (r *reader) parameter(tokens []token, at position) (p parameter, err error) {
	p.count = -1
	var words []string
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		switch {
		case slices.Contains(qualifiers, t.text):
		case t.kind == identifier && !p.pointer || t.kind == identifier && len(words) > 0 && p.name == "":
			if p.pointer {
				p.name = t.text
			} else {
				words = append(words, t.text)
			}
		case t.is("*") && len(words) > 0 && !p.pointer:
			p.pointer = true
		case t.is("[") && p.count < 0 && len(tokens) > i+1 && tokens[len(tokens)-1].is("]"):
			if p.count, err = r.count(tokens[i+1:len(tokens)-1], at); err != nil {
				return p, err
			}
			i = len(tokens)
		default:
			return p, at.errorf("parameter or field %q is not supported", join(tokens))
		}
	}
	if !p.pointer && len(words) > 1 {
		p.name, words = words[len(words)-1], words[:len(words)-1]
	}
	if p.name == "" || len(words) == 0 {
		return p, at.errorf("parameter or field %q without a type or a name", join(tokens))
	}
	p.element = strings.Join(words, " ")
	return p, nil
}

func join(tokens []token) string {
	words := make([]string, len(tokens))
	for i, t := range tokens {
		words[i] = t.text
	}
	return strings.Join(words, " ")
}

func (r *reader) count(tokens []token, at position) (int, error) {
	n, err := r.integer(tokens, at)
	if err == nil && (n <= 0 || n > 1<<20) {
		return 0, at.errorf("array of %d elements", n)
	}
	return int(n), err
}

// resolve finds the type of a parameter or a field, and its struct.
func (r *reader) resolve(p *parameter, at position) error {
	if own, ok := r.scalars[p.element]; ok {
		p.element = own
	}
	if _, ok := sizes[p.element]; ok {
		return nil
	}
	s := r.structs[p.element]
	if s == nil {
		return at.errorf("%s has the type %s, which launchgen does not know", p.name, p.element)
	}
	p.record = s
	return r.fields(s)
}

// fields reads a struct's body: what it holds, not its functions.
func (r *reader) fields(s *structure) error {
	if s.read {
		return nil
	}
	s.read = true
	body := &reader{unit: r.unit, rest: s.body, last: s.at}
	for len(body.rest) > 0 {
		at := body.peek(0).at
		if body.peek(0).is("static") || body.peek(0).is("template") || body.peek(0).is("__device__") {
			if body.peek(0).is("template") {
				if err := body.template(); err != nil {
					return err
				}
			} else if err := body.skip(); err != nil {
				return err
			}
			continue
		}
		var field []token
		for len(body.rest) > 0 && !body.peek(0).is(";") {
			field = append(field, body.next())
		}
		body.next()
		if len(field) == 0 {
			continue
		}
		// TYPE a, *b, c[2]: the type belongs to all.
		parts := split(field)
		n := 0
		for n < len(parts[0]) && parts[0][n].kind == identifier {
			n++
		}
		if n < len(parts[0]) && !parts[0][n].is("*") || n == len(parts[0]) {
			n--
		}
		if n < 1 {
			return at.errorf("struct %s: field %q is not supported", s.name, join(field))
		}
		kind := parts[0][:n]
		parts[0] = parts[0][n:]
		for _, d := range parts {
			p, err := r.parameter(slices.Concat(kind, d), at)
			if err != nil {
				return err
			}
			if err := r.resolve(&p, at); err != nil {
				return err
			}
			if p.record == s && !p.pointer {
				return at.errorf("struct %s has itself as a field", s.name)
			}
			s.fields = append(s.fields, p)
		}
	}
	if len(s.fields) == 0 {
		return s.at.errorf("struct %s has no fields", s.name)
	}
	return nil
}

// structure reads struct [alignas(N)] NAME {...}; and keeps its body.
func (r *reader) structure() error {
	s := &structure{at: r.next().at}
	if r.peek(0).is("alignas") || r.peek(0).is("__align__") {
		r.next()
		if !r.peek(0).is("(") {
			return s.at.errorf("alignas without a number")
		}
		n, err := r.block()
		if err != nil {
			return err
		}
		if s.align, err = r.count(n, s.at); err != nil {
			return err
		}
		if s.align&(s.align-1) != 0 {
			return s.at.errorf("alignas(%d)", s.align)
		}
	}
	name := r.next()
	if name.kind != identifier {
		return s.at.errorf("struct without a name")
	}
	s.name = name.text
	if !r.peek(0).is("{") { // a declaration, or what a kernel's parameter cannot be
		return r.skip()
	}
	body, err := r.block()
	if err != nil {
		return err
	}
	s.body = body
	if !r.peek(0).is(";") {
		return s.at.errorf("struct %s: want ; after its body", s.name)
	}
	r.next()
	r.structs[s.name] = s
	return nil
}

// constants reads constexpr TYPE NAME = VALUE, ...; and keeps integers.
func (r *reader) constants() error {
	at := r.next().at
	var kind []string
	for r.peek(0).kind == identifier && r.peek(1).kind == identifier {
		kind = append(kind, r.next().text)
	}
	if !r.peek(1).is("=") { // a function, or an array
		return r.skip()
	}
	element := strings.Join(kind, " ")
	if own, ok := r.scalars[element]; ok {
		element = own
	}
	if element == "float" || element == "double" || element == "bool" {
		return r.skip()
	}
	var list []token
	for !r.peek(0).is(";") {
		if len(r.rest) == 0 {
			return at.errorf("constexpr without an end")
		}
		list = append(list, r.next())
	}
	r.next()
	for _, d := range split(list) {
		if len(d) < 3 || d[0].kind != identifier || !d[1].is("=") {
			return at.errorf("constexpr %q is not supported", join(d))
		}
		if v, err := r.integer(d[2:], d[0].at); err == nil { // others call functions: Go code cannot ask for them
			r.integers[d[0].text] = constant{v, d[0].at}
		}
	}
	return nil
}

// typedef keeps names of scalars: typedef unsigned short u16.
func (r *reader) typedef() error {
	at := r.next().at
	var words []string
	for r.peek(0).kind == identifier {
		words = append(words, r.next().text)
	}
	if r.peek(0).is(";") && len(words) > 1 {
		name, of := words[len(words)-1], strings.Join(words[:len(words)-1], " ")
		if _, ok := sizes[of]; !ok {
			return at.errorf("typedef of %s", of)
		}
		r.scalars[name] = of
	}
	return r.skip()
}

// binding is how strongly operators of integers bind.
var binding = map[string]int{"|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}

// integer evaluates an expression of constants.
func (r *reader) integer(tokens []token, at position) (int64, error) {
	depth := 0
	var expression func(least int) (int64, error)
	operand := func() (int64, error) {
		if depth++; depth > 100 || len(tokens) == 0 {
			return 0, at.errorf("constant expression is not supported")
		}
		defer func() { depth-- }()
		t := tokens[0]
		tokens = tokens[1:]
		switch {
		case t.kind == number:
			v, err := strconv.ParseInt(strings.TrimRight(strings.ReplaceAll(t.text, "'", ""), "uUlL"), 0, 64)
			if err != nil {
				return 0, at.errorf("number %s", t.text)
			}
			return v, nil
		case t.kind == identifier:
			c, ok := r.integers[t.text]
			if !ok {
				return 0, at.errorf("%s is no constant that launchgen knows", t.text)
			}
			return c.value, nil
		case t.is("-"):
			v, err := expression(7)
			return -v, err
		case t.is("("):
			v, err := expression(1)
			if err == nil && (len(tokens) == 0 || !tokens[0].is(")")) {
				return 0, at.errorf("( without an end")
			}
			if err == nil {
				tokens = tokens[1:]
			}
			return v, err
		}
		return 0, at.errorf("constant expression: %s", t.text)
	}
	expression = func(least int) (int64, error) {
		left, err := operand()
		for err == nil && len(tokens) > 0 {
			op := tokens[0].text
			b := binding[op]
			if b == 0 || b < least {
				break
			}
			tokens = tokens[1:]
			var right int64
			if right, err = expression(b + 1); err != nil {
				break
			}
			switch {
			case op == "+":
				left += right
			case op == "-":
				left -= right
			case op == "*":
				left *= right
			case op == "|":
				left |= right
			case op == "^":
				left ^= right
			case op == "&":
				left &= right
			case (op == "/" || op == "%") && right != 0:
				if op == "%" {
					left %= right
				} else {
					left /= right
				}
			case (op == "<<" || op == ">>") && right >= 0 && right < 63:
				if op == "<<" {
					left <<= right
				} else {
					left >>= right
				}
			default:
				return 0, at.errorf("constant expression: %s %d", op, right)
			}
		}
		return left, err
	}
	v, err := expression(1)
	if err == nil && len(tokens) > 0 {
		return 0, at.errorf("constant expression: %s", tokens[0].text)
	}
	return v, err
}
