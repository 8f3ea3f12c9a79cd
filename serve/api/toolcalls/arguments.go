package toolcalls

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"lockstep/data/ordered"
)

// Tools are the functions of a request: the JSON schema of each parameter, by function.
type Tools map[string]*ordered.Dict

// ReadTools reads [{"type": "function", "function": {"name": ..., "parameters": schema}}, ...], or the functions alone.
// What is not of this form has no schema.
func ReadTools(list any) Tools {
	tools := Tools{}
	all, _ := list.([]any)
	for _, x := range all {
		if f, ok := field[*ordered.Dict](x, "function"); ok {
			x = f
		}
		name, _ := field[string](x, "name")
		schema, _ := field[*ordered.Dict](x, "parameters")
		if properties, ok := field[*ordered.Dict](schema, "properties"); ok {
			tools[name] = properties
		}
	}
	return tools
}

// field is d[name] where d is an object that has it, of this type.
func field[T any](d any, name string) (x T, ok bool) {
	if object, _ := d.(*ordered.Dict); object != nil {
		v, _ := object.Get(name)
		x, ok = v.(T)
	}
	return x, ok
}

// arguments are those of a call whose values are written as texts.
type arguments struct {
	schemas *ordered.Dict // by name; nil: none are known
	values  *ordered.Dict // JSON, by name
}

func (t Tools) arguments(function string) *arguments {
	return &arguments{t[function], ordered.NewDict()}
}

func (a *arguments) set(name, text string) {
	schema, _ := field[*ordered.Dict](a.schemas, name)
	a.values.Set(name, typed(text, kinds(schema, 0)))
}

// json is the object of all.
func (a *arguments) json() string {
	var b strings.Builder
	for name, value := range a.values.All() {
		b.WriteString([]string{"{", ", "}[min(b.Len(), 1)] + quoted(name.(string)) + ": " + value.(string))
	}
	if b.Len() == 0 {
		return "{}"
	}
	return b.String() + "}"
}

// kindOf is the type of JSON by its first byte; "": a number.
var kindOf = map[byte]string{'{': "object", '[': "array", '"': "string", 't': "boolean", 'f': "boolean", 'n': "null"}

// typed is the JSON of a value of one of these types; none: any. What is of no such type stays a string.
func typed(text string, want map[string]bool) string {
	s := strings.TrimSpace(text)
	switch lower := strings.ToLower(s); {
	case want["boolean"] && (lower == "true" || lower == "false"): // templates write Python's True
		return lower
	case want["null"] && (s == "null" || s == "None"):
		return "null"
	case !json.Valid([]byte(s)):
		return quoted(text)
	}
	kind := kindOf[s[0]]
	switch x, err := strconv.ParseFloat(s, 64); {
	case kind == "" && err != nil, kind == "string": // a number that no program could read; quotes of the text's own
		return quoted(text)
	case kind == "" && x == math.Trunc(x) && want["integer"]:
		kind = "integer"
	case kind == "":
		kind = "number"
	}
	if len(want) == 0 || want[kind] {
		return s
	}
	return quoted(text)
}

// kinds are the types that a schema allows, empty where it does not say.
func kinds(schema *ordered.Dict, depth int) map[string]bool {
	all := map[string]bool{}
	if name, ok := field[string](schema, "type"); ok {
		all[name] = true
	}
	names, _ := field[[]any](schema, "type")
	for _, x := range names {
		if name, ok := x.(string); ok {
			all[name] = true
		}
	}
	if len(all) > 0 || depth == 8 {
		return all
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		list, _ := field[[]any](schema, key)
		for _, x := range list {
			if s, ok := x.(*ordered.Dict); ok {
				maps.Copy(all, kinds(s, depth+1))
			}
		}
	}
	if values, ok := field[[]any](schema, "enum"); ok && !slices.ContainsFunc(values, notString) {
		all["string"] = true
	}
	return all
}

func notString(x any) bool { _, ok := x.(string); return !ok }

// quoted is a JSON string.
func quoted(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string always encodes
	}
	return strings.TrimSuffix(b.String(), "\n")
}
