package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"lockstep/data/ordered"
)

type (
	// undefined is what a name, attribute or item that does not exist gives: false, empty, printed as nothing, and an
	// error in any other use.
	undefined struct{ name string }
	// tuple is a list in round brackets.
	tuple []any
	// view is what the methods items, keys and values of a dict give.
	view struct {
		name  string
		items []any
	}
	// function is anything callable.
	function func(r *run, c call) any
	// namespace holds attributes that a template may set.
	namespace struct{ vars map[string]any }
)

// typeName is Python's name of a value's type.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case []any:
		return "list"
	case tuple:
		return "tuple"
	case *ordered.Dict:
		return "dict"
	case view:
		return v.name
	case undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *loop:
		return "LoopContext"
	case function:
		return "function"
	}
	panic(fmt.Sprintf("jinja: no value %T", v))
}

// truth is Python's bool(v).
func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case tuple:
		return len(v) > 0
	case *ordered.Dict:
		return v.Len() > 0
	case view:
		return len(v.items) > 0
	}
	return true
}

// number reads a value as a number, bools included, as Python's arithmetic does.
func number(v any) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// integer is v as an index or a count.
func integer(v any, what string) int {
	i, _, isInt, _ := number(v)
	if !isInt {
		fail(0, "%s is a %s, want an int", what, typeName(v))
	}
	return int(i)
}

// sequence is the elements of a list or tuple.
func sequence(v any) ([]any, bool) {
	switch v := v.(type) {
	case []any:
		return v, true
	case tuple:
		return v, true
	}
	return nil, false
}

// elements is what iterating over v gives: the characters of a string, the keys of a dict.
func (r *run) elements(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case string:
		r.makeList(2 * len(v)) // the strings too
		list := make([]any, 0, len(v))
		for _, c := range v {
			list = append(list, string(c))
		}
		return list
	case *ordered.Dict:
		r.makeList(v.Len())
		return slices.Clone(v.Keys())
	case view:
		return v.items
	}
	if list, ok := sequence(v); ok {
		return list
	}
	fail(0, "a %s cannot be iterated over", typeName(v))
	return nil
}

// length is Python's len.
func (r *run) length(v any) int {
	switch v := v.(type) {
	case string:
		r.read(len(v))
		return utf8.RuneCountInString(v)
	case *ordered.Dict:
		return v.Len()
	case view:
		return len(v.items)
	case undefined:
		return 0
	}
	list, ok := sequence(v)
	if !ok {
		fail(0, "a %s has no length", typeName(v))
	}
	return len(list)
}

// equal is Python's ==.
func (r *run) equal(a, b any) bool { return r.equalTo(a, b, 0) }

func (r *run) equalTo(a, b any, depth int) bool {
	if depth > maxDepth {
		fail(0, "values nested more than %d deep", maxDepth)
	}
	r.spend(1)
	if s, ok := a.(string); ok {
		t, both := b.(string)
		r.read(min(len(s), len(t)))
		return both && s == t
	}
	if h, ok := ordered.Hash(a); ok {
		g, both := ordered.Hash(b)
		return both && h == g
	}
	inner := func(x, y any) bool { return r.equalTo(x, y, depth+1) }
	switch a := a.(type) {
	case undefined:
		_, ok := b.(undefined)
		return ok
	case []any:
		l, ok := b.([]any)
		return ok && slices.EqualFunc(a, l, inner)
	case tuple:
		l, ok := b.(tuple)
		return ok && slices.EqualFunc(a, l, inner)
	case *ordered.Dict:
		d, ok := b.(*ordered.Dict)
		return ok && a.EqualFunc(d, inner)
	case *namespace:
		return b == any(a)
	case *loop:
		return b == any(a)
	}
	return false // functions are never compared in earnest
}

// compare orders two numbers, strings or sequences; anything else is an error, as in Python 3.
func (r *run) compare(a, b any) int {
	r.spend(1)
	i, x, xInt, ok := number(a)
	if j, y, yInt, both := number(b); ok && both {
		if xInt && yInt {
			return cmpOrdered(i, j)
		}
		return cmpOrdered(x, y)
	}
	if s, ok := a.(string); ok {
		if t, ok := b.(string); ok {
			r.read(min(len(s), len(t)))
			return strings.Compare(s, t) // the order of code points is the order of UTF-8
		}
	}
	if l, ok := sequence(a); ok && typeName(a) == typeName(b) {
		m, _ := sequence(b)
		for k := range min(len(l), len(m)) {
			if !r.equal(l[k], m[k]) {
				return r.compare(l[k], m[k])
			}
		}
		return cmpOrdered(len(l), len(m))
	}
	fail(0, "a %s and a %s cannot be compared", typeName(a), typeName(b))
	return 0
}

// cmpOrdered is the order of two numbers; NaN is no case here, nothing in a template makes one.
func cmpOrdered[T int | int64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// str is Python's str(v).
func (r *run) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	w := r.writer()
	w.repr(v, 0)
	return w.String()
}

func (w *writer) repr(v any, depth int) {
	if depth > maxDepth {
		fail(0, "values nested more than %d deep", maxDepth)
	}
	w.r.spend(1)
	switch v := v.(type) {
	case nil:
		w.str("None")
	case undefined:
		w.str("Undefined")
	case bool:
		w.str(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		w.str(strconv.FormatInt(v, 10))
	case float64:
		w.str(floatText(v))
	case string:
		w.quote(v)
	case []any:
		w.items("[", v, "]", depth)
	case tuple:
		w.items("(", v, map[bool]string{true: ",)", false: ")"}[len(v) == 1], depth)
	case *ordered.Dict:
		w.dict(v, depth)
	case view:
		w.items(v.name+"([", v.items, "])", depth)
	default:
		fail(0, "a %s cannot be printed", typeName(v))
	}
}

func (w *writer) items(open string, list []any, end string, depth int) {
	w.str(open)
	for i, x := range list {
		if i > 0 {
			w.str(", ")
		}
		w.repr(x, depth+1)
	}
	w.str(end)
}

func (w *writer) dict(d *ordered.Dict, depth int) {
	w.byte('{')
	first := true
	for k, v := range d.All() {
		if !first {
			w.str(", ")
		}
		first = false
		w.repr(k, depth+1)
		w.str(": ")
		w.repr(v, depth+1)
	}
	w.byte('}')
}

// floatText is Python's repr of a float: the shortest digits, with an exponent below 1e-4 and from 1e16.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quote is Python's repr of a string.
func (w *writer) quote(s string) {
	mark := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, "\"") {
		mark = '"'
	}
	w.byte(mark)
	for _, r := range s {
		switch {
		case r == rune(mark) || r == '\\':
			w.byte('\\')
			w.rune(r)
		case r == '\n':
			w.str(`\n`)
		case r == '\t':
			w.str(`\t`)
		case r == '\r':
			w.str(`\r`)
		case unicode.IsPrint(r):
			w.rune(r)
		case r < 0x100:
			fmt.Fprintf(w, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(w, `\u%04x`, r)
		default:
			fmt.Fprintf(w, `\U%08x`, r)
		}
	}
	w.byte(mark)
}
