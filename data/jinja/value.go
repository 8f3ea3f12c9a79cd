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
func elements(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case string:
		list := limited(make([]any, 0, min(len(v), maxList)), len(v))
		for _, r := range v {
			list = append(list, string(r))
		}
		return list
	case *ordered.Dict:
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
func length(v any) int {
	switch v := v.(type) {
	case string:
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
func equal(a, b any) bool { return equalTo(a, b, 0) }

func equalTo(a, b any, depth int) bool {
	if depth > maxDepth {
		fail(0, "values nested more than %d deep", maxDepth)
	}
	if h, ok := ordered.Hash(a); ok {
		g, both := ordered.Hash(b)
		return both && h == g
	}
	inner := func(x, y any) bool { return equalTo(x, y, depth+1) }
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
func compare(a, b any) int {
	i, x, xInt, ok := number(a)
	if j, y, yInt, both := number(b); ok && both {
		if xInt && yInt {
			return cmpOrdered(i, j)
		}
		return cmpOrdered(x, y)
	}
	if s, ok := a.(string); ok {
		if t, ok := b.(string); ok {
			return strings.Compare(s, t) // the order of code points is the order of UTF-8
		}
	}
	if l, ok := sequence(a); ok && typeName(a) == typeName(b) {
		m, _ := sequence(b)
		for k := range min(len(l), len(m)) {
			if !equal(l[k], m[k]) {
				return compare(l[k], m[k])
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
func str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	var b strings.Builder
	writeRepr(&b, v, 0)
	return b.String()
}

func writeRepr(b *strings.Builder, v any, depth int) {
	if depth > maxDepth {
		fail(0, "values nested more than %d deep", maxDepth)
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case undefined:
		b.WriteString("Undefined")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(floatText(v))
	case string:
		quote(b, v)
	case []any:
		writeItems(b, "[", v, "]", depth)
	case tuple:
		writeItems(b, "(", v, map[bool]string{true: ",)", false: ")"}[len(v) == 1], depth)
	case *ordered.Dict:
		writeDict(b, v, depth)
	case view:
		writeItems(b, v.name+"([", v.items, "])", depth)
	default:
		fail(0, "a %s cannot be printed", typeName(v))
	}
	bounded(b.Len())
}

func writeItems(b *strings.Builder, open string, list []any, end string, depth int) {
	b.WriteString(open)
	for i, x := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		writeRepr(b, x, depth+1)
	}
	b.WriteString(end)
}

func writeDict(b *strings.Builder, d *ordered.Dict, depth int) {
	b.WriteByte('{')
	first := true
	for k, v := range d.All() {
		if !first {
			b.WriteString(", ")
		}
		first = false
		writeRepr(b, k, depth+1)
		b.WriteString(": ")
		writeRepr(b, v, depth+1)
	}
	b.WriteByte('}')
}

// bounded gives up on strings that grow out of bounds.
func bounded(n int) {
	if n > maxString || n < 0 {
		fail(0, "a string exceeds %d bytes", maxString)
	}
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
func quote(b *strings.Builder, s string) {
	mark := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, "\"") {
		mark = '"'
	}
	b.WriteByte(mark)
	for _, r := range s {
		switch {
		case r == rune(mark) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteByte(mark)
}
