package configs

import (
	"maps"
	"reflect"
	"slices"
)

// Setting is one key of a shape and its value, both as TOML has them.
type Setting struct{ Key, Value string }

// Settings lists every key of the shape in the order of the schema; those of a free table, such as
// model.config.hidden_size, one by one.
func (s *Shape) Settings() []Setting {
	var list []Setting
	for _, f := range schema {
		v := f.in(s)
		switch {
		case f.table():
		case v.Kind() != reflect.Map:
			list = append(list, Setting{f.key, literal(v.Interface())})
		default:
			table := v.Interface().(map[string]any)
			for _, key := range slices.Sorted(maps.Keys(table)) {
				list = append(list, Setting{f.key + "." + quoteKey(key), literal(table[key])})
			}
		}
	}
	return list
}
