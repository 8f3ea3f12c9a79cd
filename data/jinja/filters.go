package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"lockstep/data/ordered"
)

type filter func(r *run, x any, c call) any

// filters of jinja2 that chat templates use. Where jinja2 gives a lazy sequence, these give a list.
var filters map[string]filter

func init() { // map and select look filters up by name
	filters = map[string]filter{
		"abs":        absolute,
		"attr":       func(_ *run, x any, c call) any { v, _ := attributeOr(x, c); return v },
		"capitalize": plain("capitalize", (*run).capitalize),
		"count":      lengthOf,
		"d":          defaultTo,
		"default":    defaultTo,
		"dictsort":   dictSort,
		"first":      first,
		"float":      toFloat,
		"indent":     indent,
		"int":        toInt,
		"items":      func(r *run, x any, c call) any { c.bind("items"); return r.pairs(x) },
		"join":       join,
		"last":       last,
		"length":     lengthOf,
		"list":       func(r *run, x any, c call) any { c.bind("list"); return r.cloned(x) },
		"lower":      plain("lower", (*run).lower),
		"map":        mapFilter,
		"max":        func(r *run, x any, c call) any { return r.extreme(x, c, 1) },
		"min":        func(r *run, x any, c call) any { return r.extreme(x, c, -1) },
		"reject":     func(r *run, x any, c call) any { return r.choose(x, c, false, false) },
		"rejectattr": func(r *run, x any, c call) any { return r.choose(x, c, true, false) },
		"replace": func(r *run, x any, c call) any {
			a := c.bind("replace", "old", "new", "count?")
			a[0], a[1] = r.str(a[0]), r.str(a[1])
			if a.or(2, nil) == nil {
				a[2] = int64(-1)
			}
			return r.replace(r.str(x), a)
		},
		"reverse":    reverse,
		"round":      round,
		"safe":       func(r *run, x any, c call) any { c.bind("safe"); return r.str(x) },
		"select":     func(r *run, x any, c call) any { return r.choose(x, c, false, true) },
		"selectattr": func(r *run, x any, c call) any { return r.choose(x, c, true, true) },
		"sort":       sortFilter,
		"string":     plain("string", func(_ *run, s string) string { return s }),
		"sum":        sum,
		"title":      plain("title", (*run).titleFilter),
		"tojson":     tojson,
		"trim": func(r *run, x any, c call) any {
			return r.stripped(r.str(x), c.bind("trim", "chars?"), true, true)
		},
		"unique":    unique,
		"upper":     plain("upper", (*run).upper),
		"wordcount": func(r *run, x any, c call) any { c.bind("wordcount"); return int64(len(r.words(r.str(x)))) },
	}
}

// filterOf finds a filter when it is used: a template may name one that it does not reach.
func filterOf(name string) filter {
	f, ok := filters[name]
	if !ok {
		fail(0, "filter %q is not supported", name)
	}
	return f
}

// plain is a filter on text without arguments.
func plain(name string, f func(*run, string) string) filter {
	return func(r *run, x any, c call) any { c.bind(name); return f(r, r.str(x)) }
}

// cloned is a list of the elements of a value.
func (r *run) cloned(x any) []any {
	list := r.elements(x)
	r.makeList(len(list))
	return append([]any{}, list...)
}

func lengthOf(r *run, x any, c call) any { c.bind("length"); return int64(r.length(x)) }

func defaultTo(_ *run, x any, c call) any {
	a := c.bind("default", "default_value?", "boolean?")
	_, missing := x.(undefined)
	if missing || truth(a.or(1, false)) && !truth(x) {
		return a.or(0, "")
	}
	return x
}

func (r *run) pairs(x any) any {
	switch x := x.(type) {
	case undefined:
		return []any{}
	case *ordered.Dict:
		return r.items(x)
	}
	fail(0, "items: a %s is not a dict", typeName(x))
	return nil
}

func first(r *run, x any, c call) any {
	c.bind("first")
	if list := r.elements(x); len(list) > 0 {
		return list[0]
	}
	return undefined{"the first element of nothing"}
}

func last(r *run, x any, c call) any {
	c.bind("last")
	if list := r.elements(x); len(list) > 0 {
		return list[len(list)-1]
	}
	return undefined{"the last element of nothing"}
}

func reverse(r *run, x any, c call) any {
	c.bind("reverse")
	list := r.cloned(x)
	slices.Reverse(list)
	if _, ok := x.(string); ok {
		return r.joinText(list, "", text)
	}
	return list
}

// getter reads the attribute named by an argument ("a.b", or an index), or the element itself without one.
// A part that is missing becomes the default, if there is one.
func (r *run) getter(attribute, otherwise any) func(any) any {
	if attribute == nil {
		return func(x any) any { return x }
	}
	var path []any
	if i, _, isInt, _ := number(attribute); isInt {
		path = []any{i}
	} else {
		r.makeList(strings.Count(text(attribute), "."))
		for part := range strings.SplitSeq(text(attribute), ".") {
			if i, err := strconv.ParseInt(part, 10, 64); err == nil {
				path = append(path, i)
			} else {
				path = append(path, part)
			}
		}
	}
	return func(x any) any {
		for _, part := range path {
			r.spend(1)
			x = r.item(x, part)
			if _, missing := x.(undefined); missing && otherwise != nil {
				x = otherwise
			}
		}
		return x
	}
}

func join(r *run, x any, c call) any {
	a := c.bind("join", "d?", "attribute?")
	get := r.getter(a.or(1, nil), nil)
	return r.joinText(r.elements(x), r.str(a.or(0, "")), func(v any) string { return r.str(get(v)) })
}

// elementsIfAny are the elements of x; anything false has none to map and select.
func (r *run) elementsIfAny(x any) []any {
	if !truth(x) {
		return nil
	}
	return r.elements(x)
}

// mapFilter is map(attribute=..., default=...) or map("filter", arguments).
func mapFilter(r *run, x any, c call) any {
	list := r.elementsIfAny(x)
	r.makeList(len(list))
	out := []any{}
	if len(c.list) == 0 {
		a := c.bind("map", "attribute", "default?")
		get := r.getter(a[0], a.or(1, nil))
		for _, v := range list {
			r.spend(1)
			out = append(out, get(v))
		}
		return out
	}
	name := text(c.list[0])
	f := filterOf(name)
	rest := call{c.list[1:], c.names, c.named}
	for _, v := range list {
		r.spend(1)
		out = append(out, f(r, v, rest))
	}
	return out
}

// choose is select, reject, selectattr and rejectattr: elements (or an attribute of them) that pass a test, or are
// true.
func (r *run) choose(x any, c call, attr, keep bool) any {
	get := func(v any) any { return v }
	if attr {
		if len(c.list) == 0 {
			fail(0, "selectattr and rejectattr need the name of an attribute")
		}
		get = r.getter(c.list[0], nil)
		c.list = c.list[1:]
	}
	passes := func(v any) bool { return truth(v) }
	if len(c.list) > 0 {
		name := text(c.list[0])
		t := testOf(name)
		rest := call{c.list[1:], c.names, c.named}
		passes = func(v any) bool { return t(r, v, rest) }
	}
	list := r.elementsIfAny(x)
	r.makeList(len(list))
	out := []any{}
	for _, v := range list {
		r.spend(1)
		if passes(get(v)) == keep {
			out = append(out, v)
		}
	}
	return out
}

func attributeOr(x any, c call) (any, bool) {
	name := text(c.bind("attr", "name")[0])
	mustBeDefined(x)
	if v, ok := attribute(x, name); ok {
		return v, true
	}
	return undefined{typeName(x) + "." + name}, false
}

// indent puts blanks before every line but the first, or a given text.
func indent(r *run, x any, c call) any {
	a := c.bind("indent", "width?", "first?", "blank?")
	by, ok := a.or(0, int64(4)).(string)
	if !ok {
		n := integer(a.or(0, int64(4)), "indent")
		r.makeString(max(n, 0))
		by = strings.Repeat(" ", max(n, 0))
	}
	lines := r.splitLines(text(x)+"\n", false) // other line ends become newlines
	r.makeString(len(lines) * len(by))
	for i, line := range lines {
		if i == 0 && !truth(a.or(1, false)) || i > 0 && line == "" && !truth(a.or(2, false)) {
			continue
		}
		r.makeString(len(by) + len(line))
		lines[i] = by + line
	}
	r.makeString(len(text(x)) + len(lines)*len(by))
	return strings.Join(lines, "\n")
}

func absolute(_ *run, x any, c call) any {
	c.bind("abs")
	mustBeDefined(x)
	i, f, isInt, ok := number(x)
	switch {
	case !ok:
		fail(0, "abs: a %s is not a number", typeName(x))
	case isInt:
		return max(i, -i)
	}
	return math.Abs(f)
}

// toInt is Python's int, over float for text with a point; the default (0) for what is not a number.
func toInt(r *run, x any, c call) any {
	a := c.bind("int", "default?")
	mustBeDefined(x)
	if s, ok := x.(string); ok {
		r.decode(len(s))
		s = strings.ReplaceAll(strings.TrimFunc(s, isSpace), "_", "")
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			return i
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return a.or(0, int64(0))
		}
		x = f
	}
	i, f, isInt, ok := number(x)
	switch {
	case !ok || math.IsNaN(f) || math.IsInf(f, 0):
		return a.or(0, int64(0))
	case isInt:
		return i
	case math.Abs(f) >= 1<<63:
		tooLarge()
	}
	return int64(f)
}

func toFloat(r *run, x any, c call) any {
	a := c.bind("float", "default?")
	mustBeDefined(x)
	if s, ok := x.(string); ok {
		r.decode(len(s))
		f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64)
		if err != nil {
			return a.or(0, 0.0)
		}
		return f
	}
	if _, f, _, ok := number(x); ok {
		return f
	}
	return a.or(0, 0.0)
}

// round to a number of places, ties to even as Python does; method "ceil" or "floor" too. An int stays one if it is
// rounded by "common".
func round(_ *run, x any, c call) any {
	a := c.bind("round", "precision?", "method?")
	i, f, isInt, ok := number(x)
	places := integer(a.or(0, int64(0)), "precision")
	if !ok || places < 0 || places > 15 {
		fail(0, "round: want a number and a precision from 0 to 15")
	}
	scale := math.Pow10(places)
	switch method := text(a.or(1, "common")); method {
	case "common":
		if isInt {
			return i
		}
		v, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', places, 64), 64)
		if err != nil {
			fail(0, "round: %v", err)
		}
		return v
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	default:
		fail(0, "round: no method %q", method)
		return nil
	}
}
