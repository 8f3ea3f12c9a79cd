package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// DecodeJSON reads one JSON value into values of this package. Objects keep the order of their keys; a number without
// point or exponent is an int.
func DecodeJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := decode(d, 0)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more text follows the JSON value")
	}
	return v, nil
}

func decode(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("JSON is nested more than %d deep", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return decodeNumber(t.String())
	case json.Delim:
		if t == '{' {
			return decodeObject(d, depth)
		}
		return decodeArray(d, depth)
	}
	return t, nil // nil, bool or string
}

func decodeNumber(text string) (any, error) {
	if !strings.ContainsAny(text, ".eE") {
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("number %.40s is too large", text)
		}
		return i, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, fmt.Errorf("number %.40s is too large", text)
	}
	return f, nil
}

func decodeObject(d *json.Decoder, depth int) (any, error) {
	obj := NewDict()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := decode(d, depth+1)
		if err != nil {
			return nil, err
		}
		obj.Set(key, v)
	}
	_, err := d.Token()
	return obj, err
}

func decodeArray(d *json.Decoder, depth int) (any, error) {
	list := []any{}
	for d.More() {
		v, err := decode(d, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := d.Token()
	return list, err
}

// dumper is Python's json.dumps with its settings.
type dumper struct {
	b         strings.Builder
	ascii     bool   // escape what is not ASCII
	indent    string // of one level; see pretty
	pretty    bool
	item, key string // separators
	sort      bool
}

// tojson is the filter as transformers defines it: tojson(ensure_ascii=False, indent=None, separators=None,
// sort_keys=False).
func tojson(_ *run, x any, c call) any {
	a := c.bind("tojson", "ensure_ascii?", "indent?", "separators?", "sort_keys?")
	d := dumper{ascii: truth(a.or(0, false)), item: ", ", key: ": ", sort: truth(a.or(3, false))}
	switch in := a.or(1, nil).(type) {
	case nil:
	case string:
		d.pretty, d.indent, d.item = true, in, ","
	default:
		n := integer(in, "indent")
		bounded(n << 8)
		d.pretty, d.indent, d.item = true, strings.Repeat(" ", max(n, 0)), ","
	}
	if seps := a.or(2, nil); seps != nil {
		list := elements(seps)
		if len(list) != 2 {
			fail(0, "tojson: separators are two strings")
		}
		d.item, d.key = str(list[0]), str(list[1])
	}
	d.value(x, 0)
	return d.b.String()
}

func (d *dumper) value(v any, depth int) {
	if depth > maxDepth {
		fail(0, "values nested more than %d deep", maxDepth)
	}
	bounded(d.b.Len())
	switch v := v.(type) {
	case nil:
		d.b.WriteString("null")
	case bool:
		d.b.WriteString(strconv.FormatBool(v))
	case int64:
		d.b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		d.b.WriteString(jsonFloat(v))
	case string:
		d.str(v)
	case []any:
		d.list(v, depth)
	case tuple:
		d.list(v, depth)
	case *Dict:
		d.dict(v, depth)
	default:
		fail(0, "tojson: a %s is no JSON", typeName(v))
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
		d.b.WriteByte('\n')
		for range depth {
			d.b.WriteString(d.indent)
		}
	}
}

func (d *dumper) list(list []any, depth int) {
	if len(list) == 0 {
		d.b.WriteString("[]")
		return
	}
	d.b.WriteByte('[')
	for i, v := range list {
		if i > 0 {
			d.b.WriteString(d.item)
		}
		d.line(depth + 1)
		d.value(v, depth+1)
	}
	d.line(depth)
	d.b.WriteByte(']')
}

func (d *dumper) dict(m *Dict, depth int) {
	if m.Len() == 0 {
		d.b.WriteString("{}")
		return
	}
	keys := m.keys
	if d.sort {
		keys = slices.Clone(keys)
		slices.SortStableFunc(keys, compare)
	}
	d.b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			d.b.WriteString(d.item)
		}
		d.line(depth + 1)
		d.str(keyText(k))
		d.b.WriteString(d.key)
		v, _ := m.Get(k)
		d.value(v, depth+1)
	}
	d.line(depth)
	d.b.WriteByte('}')
}

// keyText makes a key a string, as json.dumps does.
func keyText(k any) string {
	switch k := k.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(k)
	case float64:
		return jsonFloat(k)
	}
	return str(k)
}

var jsonEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}

func (d *dumper) str(s string) {
	d.b.WriteByte('"')
	for _, r := range s {
		switch text, ok := jsonEscapes[r]; {
		case ok:
			d.b.WriteString(text)
		case r < ' ' || d.ascii && r > '~':
			d.escape(r)
		default:
			d.b.WriteRune(r)
		}
	}
	d.b.WriteByte('"')
}

func (d *dumper) escape(r rune) {
	if r < 0x10000 {
		fmt.Fprintf(&d.b, `\u%04x`, r)
		return
	}
	hi, lo := utf16.EncodeRune(r)
	fmt.Fprintf(&d.b, `\u%04x\u%04x`, hi, lo)
}
