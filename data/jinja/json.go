package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"lockstep/data/ordered"
)

// dumper is Python's json.dumps with its settings.
type dumper struct {
	r         *run
	b         *writer
	ascii     bool   // escape what is not ASCII
	indent    string // of one level; see pretty
	pretty    bool
	item, key string // separators
	sort      bool
}

// tojson is the filter as transformers defines it: tojson(ensure_ascii=False, indent=None, separators=None,
// sort_keys=False).
func tojson(r *run, x any, c call) any {
	a := c.bind("tojson", "ensure_ascii?", "indent?", "separators?", "sort_keys?")
	d := dumper{r: r, b: r.writer(), ascii: truth(a.or(0, false)), item: ", ", key: ": ", sort: truth(a.or(3, false))}
	switch in := a.or(1, nil).(type) {
	case nil:
	case string:
		d.pretty, d.indent, d.item = true, in, ","
	default:
		n := integer(in, "indent")
		r.makeString(max(n, 0))
		d.pretty, d.indent, d.item = true, strings.Repeat(" ", max(n, 0)), ","
	}
	if seps := a.or(2, nil); seps != nil {
		list := r.elements(seps)
		if len(list) != 2 {
			fail(0, "tojson: separators are two strings")
		}
		d.item, d.key = r.str(list[0]), r.str(list[1])
	}
	d.value(x, 0)
	return d.b.String()
}

func (d *dumper) value(v any, depth int) {
	if depth > maxDepth {
		fail(0, "values nested more than %d deep", maxDepth)
	}
	d.r.spend(1)
	switch v := v.(type) {
	case nil:
		d.b.str("null")
	case bool:
		d.b.str(strconv.FormatBool(v))
	case int64:
		d.b.str(strconv.FormatInt(v, 10))
	case float64:
		d.b.str(jsonFloat(v))
	case string:
		d.str(v)
	case []any:
		d.list(v, depth)
	case tuple:
		d.list(v, depth)
	case *ordered.Dict:
		d.dict(v, depth)
	default:
		fail(0, "tojson: a %s is not JSON", typeName(v))
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatText(f)
}

// line starts the line of an element under indent.
func (d *dumper) line(depth int) {
	if d.pretty {
		d.b.byte('\n')
		for range depth {
			d.b.str(d.indent)
		}
	}
}

func (d *dumper) list(list []any, depth int) {
	if len(list) == 0 {
		d.b.str("[]")
		return
	}
	d.b.byte('[')
	for i, v := range list {
		if i > 0 {
			d.b.str(d.item)
		}
		d.line(depth + 1)
		d.value(v, depth+1)
	}
	d.line(depth)
	d.b.byte(']')
}

func (d *dumper) dict(m *ordered.Dict, depth int) {
	if m.Len() == 0 {
		d.b.str("{}")
		return
	}
	keys := m.Keys()
	if d.sort {
		d.r.makeList(len(keys))
		keys = slices.Clone(keys)
		slices.SortStableFunc(keys, d.r.compare)
	}
	d.b.byte('{')
	for i, k := range keys {
		if i > 0 {
			d.b.str(d.item)
		}
		d.line(depth + 1)
		d.str(d.keyText(k))
		d.b.str(d.key)
		v, _ := m.Get(k)
		d.value(v, depth+1)
	}
	d.line(depth)
	d.b.byte('}')
}

// keyText makes a key a string, as json.dumps does.
func (d *dumper) keyText(k any) string {
	switch k := k.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(k)
	case float64:
		return jsonFloat(k)
	}
	return d.r.str(k)
}

var jsonEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}

func (d *dumper) str(s string) {
	d.b.byte('"')
	for _, r := range s {
		switch text, ok := jsonEscapes[r]; {
		case ok:
			d.b.str(text)
		case r < ' ' || d.ascii && r > '~':
			d.escape(r)
		default:
			d.b.rune(r)
		}
	}
	d.b.byte('"')
}

func (d *dumper) escape(r rune) {
	if r < 0x10000 {
		fmt.Fprintf(d.b, `\u%04x`, r)
		return
	}
	hi, lo := utf16.EncodeRune(r)
	fmt.Fprintf(d.b, `\u%04x\u%04x`, hi, lo)
}
