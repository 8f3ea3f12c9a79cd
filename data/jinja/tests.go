package jinja

import (
	"unicode"
	"unicode/utf8"

	"lockstep/data/ordered"
)

type test func(r *run, x any, c call) bool

// tests of jinja2, the part behind "is".
var tests = map[string]test{
	"defined":   is("defined", func(_ *run, x any) bool { _, ok := x.(undefined); return !ok }),
	"undefined": is("undefined", func(_ *run, x any) bool { _, ok := x.(undefined); return ok }),
	"none":      is("none", func(_ *run, x any) bool { return x == nil }),
	"boolean":   is("boolean", func(_ *run, x any) bool { _, ok := x.(bool); return ok }),
	"true":      is("true", func(_ *run, x any) bool { return x == true }),
	"false":     is("false", func(_ *run, x any) bool { return x == false }),
	"integer":   is("integer", func(_ *run, x any) bool { _, ok := x.(int64); return ok }),
	"float":     is("float", func(_ *run, x any) bool { _, ok := x.(float64); return ok }),
	"number":    is("number", func(_ *run, x any) bool { _, _, _, ok := number(x); return ok }),
	"string":    is("string", func(_ *run, x any) bool { _, ok := x.(string); return ok }),
	"mapping":   is("mapping", func(_ *run, x any) bool { _, ok := x.(*ordered.Dict); return ok }),
	"callable":  is("callable", func(_ *run, x any) bool { return isCallable(x) }),
	"sequence":  is("sequence", func(_ *run, x any) bool { return isSequence(x) }),
	"iterable":  is("iterable", func(_ *run, x any) bool { _, ok := x.(view); return ok || isSequence(x) }),
	"lower":     is("lower", func(r *run, x any) bool { return r.cased(r.str(x), unicode.IsLower) }),
	"upper":     is("upper", func(r *run, x any) bool { return r.cased(r.str(x), unicode.IsUpper) }),
	"odd":       is("odd", func(r *run, x any) bool { return r.equal(arithmetic("%", x, int64(2)), int64(1)) }),
	"even":      is("even", func(r *run, x any) bool { return r.equal(arithmetic("%", x, int64(2)), int64(0)) }),
	"divisibleby": func(r *run, x any, c call) bool {
		by := c.bind("divisibleby", "num")[0]
		return r.equal(arithmetic("%", x, by), int64(0))
	},
	"in": func(r *run, x any, c call) bool { return r.contains(c.bind("in", "seq")[0], x) },
	"sameas": func(r *run, x any, c call) bool {
		y := c.bind("sameas", "other")[0]
		return typeName(x) == typeName(y) && r.equal(x, y)
	},
	"filter": func(_ *run, x any, c call) bool { c.bind("filter"); _, ok := filters[text(x)]; return ok },
	"eq":     relation("=="), "equalto": relation("=="),
	"ne": relation("!="),
	"lt": relation("<"), "lessthan": relation("<"),
	"le": relation("<="),
	"gt": relation(">"), "greaterthan": relation(">"),
	"ge": relation(">="),
}

// testOf finds a test when it is used.
func testOf(name string) test {
	t, ok := tests[name]
	if !ok {
		fail(0, "test %q is not supported", name)
	}
	return t
}

// is makes a test without arguments.
func is(name string, f func(*run, any) bool) test {
	return func(r *run, x any, c call) bool { c.bind(name); return f(r, x) }
}

func relation(op string) test {
	return func(r *run, x any, c call) bool { return r.holds(x, op, c.bind(op, "other")[0]) }
}

// isSequence: strings, lists, tuples and dicts are sequences to jinja2, and so is undefined.
func isSequence(x any) bool {
	switch x.(type) {
	case string, []any, tuple, *ordered.Dict, undefined:
		return true
	}
	return false
}

// isCallable: to Python undefined can be called too, which is an error then.
func isCallable(x any) bool {
	switch x.(type) {
	case function, undefined:
		return true
	}
	return false
}

func isAlnum(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }

// capitalizeUpper is a word with its first character in upper case and the others in lower case.
func (r *run) capitalizeUpper(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return r.upper(s[:n]) + r.lower(s[n:])
}
