package configs

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// configKey is the table whose keys are the model's own.
const configKey = "model.config"

// override puts one "table.key=value" on the shape.
func (r *reader) override(flag string) {
	key, text, ok := strings.Cut(flag, "=")
	r.flags[key] = quoteFlag(flag)
	switch f := byKey[key]; {
	case !ok:
		r.report(key, "has no value, write table.key=value")
	case checkText("", flag) != nil:
		r.report(key, "lists, tables or parts of the key lie too deep in each other")
	case !utf8.ValidString(flag):
		r.report(key, "is not UTF-8, fix its encoding")
	case strings.HasPrefix(key, configKey+"."):
		r.flags[configKey] = quoteFlag(flag)
		if err := setConfig(&r.shape.Model, strings.Split(key, ".")[2:], overrideValue(text)); err != nil {
			r.report(key, err.Error())
		}
	case f == nil:
		r.report(key, unknown(key))
	case f.table():
		r.report(key, "is a table, set its keys one by one")
	default:
		delete(r.bad, key)
		if err := f.assign(r.shape, overrideFor(f, text)); err != nil {
			r.report(key, err.Error())
		}
	}
}

// quoteFlag keeps a flag on one line.
func quoteFlag(flag string) string {
	if strings.ContainsFunc(flag, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
		return fmt.Sprintf("%q", flag)
	}
	return flag
}

// overrideValue is a TOML value, or the text itself where it is none.
func overrideValue(text string) any {
	v, err := parseValue(text)
	if err != nil {
		return text
	}
	return v
}

// overrideFor helps a shell's user: what is meant for a string needs no quotes, a list no brackets.
func overrideFor(f *field, text string) any {
	v := overrideValue(text)
	_, isString := v.(string)
	_, isBool := v.(bool)
	_, isNumber := number(v)
	switch {
	case isBool && f.bools != nil:
		return v
	case f.typ.Kind() == reflect.String && !isString:
		return text
	case f.typ.Kind() == reflect.Slice && isString && text == "":
		return []any{}
	case f.typ.Kind() != reflect.Slice:
	case f.typ.Elem().Kind() == reflect.Float64 && (isString || isNumber):
		return overrideItems(text, overrideValue)
	case isString:
		return overrideItems(v.(string), func(item string) any { return item })
	}
	return v
}

// overrideItems is a list without brackets.
func overrideItems(text string, value func(item string) any) (items []any) {
	for _, item := range strings.Split(text, ",") {
		items = append(items, value(item))
	}
	return items
}

// setConfig sets a key, possibly of a table in a table, of the new network's config.json.
func setConfig(m *Model, path []string, v any) error {
	if slices.Contains(path, "") {
		return errEmptyKey
	}
	clean, err := jsonValue(v)
	if err != nil {
		return err
	}
	if m.Config == nil {
		m.Config = map[string]any{}
	}
	table := m.Config
	for _, name := range path[:len(path)-1] {
		if table[name] == nil {
			table[name] = map[string]any{}
		}
		next, ok := table[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %s, want a table", name, kindOf(table[name]))
		}
		table = next
	}
	table[path[len(path)-1]] = clean
	return nil
}
