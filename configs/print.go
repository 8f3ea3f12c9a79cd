package configs

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// TOML is the whole shape, defaults and comments included. It parses back to an equal shape.
func (s *Shape) TOML() []byte {
	var b strings.Builder
	for _, f := range schema {
		v := f.in(s)
		switch {
		case f.table():
			heading(&b, f)
		case v.Kind() != reflect.Map:
			line(&b, f.name(), v.Interface(), f.doc)
		case v.Len() > 0:
			heading(&b, f)
			table := v.Interface().(map[string]any)
			for _, key := range slices.Sorted(maps.Keys(table)) {
				line(&b, quoteKey(key), table[key], "")
			}
		}
	}
	return []byte(b.String())
}

func heading(b *strings.Builder, f *field) {
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	fmt.Fprintf(b, "# %s\n[%s]\n", f.doc, f.key)
}

// line is `key = value  # doc`, with the comments of short values in one column.
func line(b *strings.Builder, key string, v any, doc string) {
	text := key + " = " + literal(v)
	if doc != "" {
		text += strings.Repeat(" ", max(0, 28-utf8.RuneCountInString(text))) + "  # " + doc
	}
	b.WriteString(text + "\n")
}

// literal is a value in TOML, on one line.
func literal(v any) string {
	switch v := v.(type) {
	case string:
		return quote(v)
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return text
	case []string:
		return list(v)
	case []float64:
		return list(v)
	case []any:
		return list(v)
	case map[string]any:
		var items []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			items = append(items, quoteKey(key)+" = "+literal(v[key]))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	return fmt.Sprint(v) // an integer or a bool
}

func list[T any](items []T) string {
	parts := make([]string, len(items))
	for i, item := range items {
		parts[i] = literal(item)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func quoteKey(key string) string {
	if bareKey.MatchString(key) {
		return key
	}
	return quote(key)
}

// quote writes a TOML basic string.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
