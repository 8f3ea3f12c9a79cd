package jinja

import "strings"

// call is the arguments of a call, evaluated.
type call struct {
	list  []any
	names []string
	named []any
}

// bound is arguments by parameter; absent stands for those left out.
type bound []any

type absent struct{}

// or is argument i, or its default.
func (b bound) or(i int, value any) any {
	if _, left := b[i].(absent); left {
		return value
	}
	return b[i]
}

func (b bound) has(i int) bool {
	_, left := b[i].(absent)
	return !left
}

// bind matches arguments to the parameters of a function; a trailing ? marks one that may be left out.
func (c call) bind(fn string, params ...string) bound {
	b := make(bound, len(params))
	for i := range b {
		b[i] = absent{}
	}
	if len(c.list) > len(params) {
		fail(0, "%s takes at most %d arguments, not %d", fn, len(params), len(c.list))
	}
	copy(b, c.list)
	for i, name := range c.names {
		at := -1
		for k, p := range params {
			if strings.TrimSuffix(p, "?") == name {
				at = k
			}
		}
		if at < 0 || b.has(at) {
			fail(0, "%s takes no (second) argument %s", fn, name)
		}
		b[at] = c.named[i]
	}
	for i, p := range params {
		if !b.has(i) && !strings.HasSuffix(p, "?") {
			fail(0, "%s needs its argument %s", fn, p)
		}
	}
	return b
}

func (r *run) args(a args) call {
	r.makeList(len(a.list) + len(a.named))
	c := call{names: append([]string(nil), a.names...)}
	for _, n := range a.list {
		c.list = append(c.list, r.eval(n))
	}
	for _, n := range a.named {
		c.named = append(c.named, r.eval(n))
	}
	return c
}

func (r *run) call(fn any, c call) any {
	switch f := fn.(type) {
	case function:
		return f(r, c)
	case undefined:
		fail(0, "%s is undefined (or not supported) and cannot be called", f.name)
	}
	fail(0, "a %s cannot be called", typeName(fn))
	return nil
}

// apply puts a value through filters.
func (r *run) apply(v any, list []filterCall) any {
	for _, f := range list {
		v = filterOf(f.name)(r, v, r.args(f.args))
	}
	return v
}
