package jinja

import (
	"fmt"

	"lockstep/data/ordered"
)

// globals are the functions every template may call.
var globals = map[string]any{
	"range":           function(rangeOf),
	"dict":            function(func(r *run, c call) any { return r.named("dict", c) }),
	"namespace":       function(newNamespace),
	"raise_exception": function(raise),
	"strftime_now":    function(strftimeNow),
}

// named is a dict of keyword arguments on top of a dict.
func (r *run) named(fn string, c call) *ordered.Dict {
	r.makeDict(len(c.names))
	d := ordered.NewDict()
	if len(c.list) > 1 {
		fail(0, "%s takes at most one positional argument", fn)
	}
	if len(c.list) == 1 {
		base, ok := c.list[0].(*ordered.Dict)
		if !ok {
			fail(0, "%s of a %s is not supported", fn, typeName(c.list[0]))
		}
		r.makeDict(base.Len())
		d = base.Clone()
	}
	for i, name := range c.names {
		d.Set(name, c.named[i])
	}
	return d
}

func newNamespace(r *run, c call) any {
	ns := &namespace{vars: map[string]any{}}
	d := r.named("namespace", c)
	r.makeDict(d.Len())
	for k, v := range d.All() {
		ns.vars[text(k)] = v
	}
	return ns
}

// rangeOf is range(stop) or range(start, stop, step).
func rangeOf(r *run, c call) any {
	if len(c.names) > 0 || len(c.list) < 1 || len(c.list) > 3 {
		fail(0, "range takes 1 to 3 positional arguments")
	}
	v := [3]int{0, 0, 1}
	for i, x := range c.list {
		v[i] = integer(x, "range's argument")
	}
	if len(c.list) == 1 {
		v[0], v[1] = 0, v[0]
	}
	if v[2] == 0 {
		fail(0, "range's step is 0")
	}
	list := []any{}
	for i := v[0]; v[2] > 0 && i < v[1] || v[2] < 0 && i > v[1]; i += v[2] {
		if len(list) == maxRange {
			fail(0, "range gives more than %d numbers", maxRange)
		}
		r.take(sizeElement + 8)
		list = append(list, int64(i))
	}
	return list
}

// raise is raise_exception: the template itself refuses the conversation.
func raise(r *run, c call) any {
	fail(0, "the template raised an error: %s", r.str(c.bind("raise_exception", "message")[0]))
	return nil
}

// strftimeNow formats the time of the rendering by C's directives.
func strftimeNow(r *run, c call) any {
	format := text(c.bind("strftime_now", "format")[0])
	if r.now.IsZero() {
		fail(0, "strftime_now: there is no date here, give the template its own variable for it (often date_string)")
	}
	b := r.writer()
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.byte(format[i])
			continue
		}
		i++
		b.str(r.directive(format[i]))
	}
	return b.String()
}

// layouts of directives that Go has too.
var layouts = map[byte]string{
	'd': "02", 'm': "01", 'y': "06", 'Y': "2006", 'b': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday",
	'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'F': "2006-01-02", 'T': "15:04:05", 'Z': "MST", 'z': "-0700",
}

func (r *run) directive(d byte) string {
	if d == '%' {
		return "%"
	}
	if d == 'j' {
		return fmt.Sprintf("%03d", r.now.YearDay())
	}
	layout, ok := layouts[d]
	if !ok {
		fail(0, "strftime_now: %%%c is not supported", d)
	}
	return r.now.Format(layout)
}
