package configs

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

// assign puts a decoded TOML value into a field and checks it; the error says what is wrong and the mend.
func (f *field) assign(s *Shape, v any) error {
	to := f.in(s)
	switch to.Kind() {
	case reflect.Int:
		n, ok := v.(int64)
		if !ok {
			return mistyped(v, "an integer")
		}
		if !f.within.holds(float64(n)) {
			return fmt.Errorf("is %d, want %v", n, f.within)
		}
		to.SetInt(n)
	case reflect.Float64:
		x, ok := number(v)
		if !ok {
			return mistyped(v, "a number")
		}
		if !f.within.holds(x) {
			return fmt.Errorf("is %v, want %v", x, f.within)
		}
		to.SetFloat(x)
	case reflect.Bool:
		b, ok := v.(bool)
		if !ok {
			return mistyped(v, "true or false")
		}
		to.SetBool(b)
	case reflect.String:
		return f.assignString(to, v)
	case reflect.Slice:
		if to.Type().Elem().Kind() == reflect.Float64 {
			return f.assignNumbers(to, v)
		}
		return assignList(to, v)
	case reflect.Map:
		return assignConfig(to, v)
	}
	return nil
}

func number(v any) (float64, bool) {
	switch x := v.(type) {
	case int64:
		return float64(x), true
	case float64:
		return x, true
	}
	return 0, false
}

func (f *field) assignString(to reflect.Value, v any) error {
	text, ok := v.(string)
	if b, isBool := v.(bool); isBool && f.bools != nil {
		text, ok = f.bools[0], true
		if b {
			text = f.bools[1]
		}
	}
	if !ok {
		return mistyped(v, "a string")
	}
	if f.oneof != nil && !slices.Contains(f.oneof, text) {
		return fmt.Errorf("is %q, want %s", text, choices(f.oneof))
	}
	to.SetString(text)
	return nil
}

// choices is `"a", "b" or "c"`; the empty string is not offered.
func choices(of []string) string {
	var quoted []string
	for _, c := range of {
		if c != "" {
			quoted = append(quoted, fmt.Sprintf("%q", c))
		}
	}
	last := len(quoted) - 1
	if last == 0 {
		return quoted[0]
	}
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}

// assignList accepts a list of different, non-empty strings.
func assignList(to reflect.Value, v any) error {
	items, ok := v.([]any)
	if !ok {
		return mistyped(v, "a list of strings")
	}
	var list []string
	for i, item := range items {
		text, ok := item.(string)
		switch {
		case !ok:
			return fmt.Errorf("item %d: %w", i+1, mistyped(item, "a string"))
		case text == "":
			return fmt.Errorf("item %d is empty, remove it", i+1)
		case slices.Contains(list, text):
			return fmt.Errorf("has %q twice, remove one", text)
		}
		list = append(list, text)
	}
	to.Set(reflect.ValueOf(list))
	return nil
}

// assignNumbers accepts a list of numbers of the field's range.
func (f *field) assignNumbers(to reflect.Value, v any) error {
	items, ok := v.([]any)
	if !ok {
		return mistyped(v, "a list of numbers")
	}
	var list []float64
	for i, item := range items {
		x, ok := number(item)
		if !ok {
			return fmt.Errorf("item %d: %w", i+1, mistyped(item, "a number"))
		}
		if !f.within.holds(x) {
			return fmt.Errorf("item %d is %v, want %v", i+1, x, f.within)
		}
		list = append(list, x)
	}
	to.Set(reflect.ValueOf(list))
	return nil
}

// assignConfig accepts a table of what JSON can say.
func assignConfig(to reflect.Value, v any) error {
	table, ok := v.(map[string]any)
	if !ok {
		return mistyped(v, "a table")
	}
	if len(table) == 0 {
		to.SetZero()
		return nil
	}
	clean, err := jsonValue(table)
	if err != nil {
		return err
	}
	to.Set(reflect.ValueOf(clean))
	return nil
}

var errEmptyKey = errors.New("has an empty key, give it a name")

// jsonValue copies a TOML value into strings, bools, int64, finite float64, []any and map[string]any.
func jsonValue(v any) (any, error) {
	switch v := v.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("has %v, config.json holds finite numbers only", v)
		}
	case time.Time:
		return nil, fmt.Errorf("has a date, write it as a string")
	case []any:
		return jsonList(v)
	case []map[string]any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = v[i]
		}
		return jsonList(list)
	case map[string]any:
		out := map[string]any{}
		for k, item := range v {
			if k == "" { // the TOML library loses values next to an empty key
				return nil, errEmptyKey
			}
			clean, err := jsonValue(item)
			if err != nil {
				return nil, err
			}
			out[k] = clean
		}
		return out, nil
	}
	return v, nil
}

func jsonList(items []any) (any, error) {
	out := make([]any, len(items))
	for i, item := range items {
		clean, err := jsonValue(item)
		if err != nil {
			return nil, err
		}
		out[i] = clean
	}
	return out, nil
}

func mistyped(v any, want string) error { return fmt.Errorf("is %s, want %s", kindOf(v), want) }

func kindOf(v any) string {
	switch v.(type) {
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "true or false"
	case string:
		return "a string"
	case []any:
		return "a list"
	case []map[string]any:
		return "a list of tables"
	case map[string]any:
		return "a table"
	case time.Time:
		return "a date"
	}
	panic(fmt.Sprintf("configs: TOML value of type %T", v))
}
