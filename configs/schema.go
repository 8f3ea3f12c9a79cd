package configs

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/BurntSushi/toml"
)

// field is one key of the schema, or one table of it.
type field struct {
	key    string // "run.steps"
	doc    string
	index  []int // of reflect.Value.FieldByIndex
	typ    reflect.Type
	zero   any // default, as TOML decodes it; nil: the zero value
	within interval
	oneof  []string
	bools  []string // of a string: the values that false and true stand for; nil: none
}

func (f *field) table() bool { return f.typ.Kind() == reflect.Struct }

// name is the last part of the key.
func (f *field) name() string { return f.key[strings.LastIndexByte(f.key, '.')+1:] }

// in is the field's place in a shape.
func (f *field) in(s *Shape) reflect.Value { return reflect.ValueOf(s).Elem().FieldByIndex(f.index) }

//go:generate go run ./gen

// schema lists every table and key, a table before its keys, in the order of shape.go.
var schema = readSchema()

// byKey finds a field of the schema.
var byKey = func() map[string]*field {
	m := map[string]*field{}
	for _, f := range schema {
		m[f.key] = f
	}
	return m
}()

func readSchema() []*field {
	var fields []*field
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			sf := t.Field(i)
			if sf.Tag.Get("toml") == "-" {
				continue
			}
			f := readField(sf, prefix, fieldDocs[t.Name()+"."+sf.Name])
			f.index = append(append([]int{}, index...), i)
			fields = append(fields, f)
			if f.table() {
				walk(sf.Type, f.key+".", f.index)
			}
		}
	}
	walk(reflect.TypeFor[Shape](), "", nil)
	return fields
}

func readField(sf reflect.StructField, prefix, doc string) *field {
	f := &field{key: prefix + sf.Tag.Get("toml"), doc: doc, typ: sf.Type}
	if doc == "" {
		panic("configs: " + f.key + " has no documentation: write a comment in shape.go and run go generate ./configs")
	}
	if text, ok := sf.Tag.Lookup("default"); ok {
		v, err := parseValue(text)
		if err != nil {
			panic(fmt.Sprintf("configs: default of %s: %v", f.key, err))
		}
		f.zero = v
	}
	if text, ok := sf.Tag.Lookup("range"); ok {
		f.within = parseInterval(text)
	}
	if text, ok := sf.Tag.Lookup("oneof"); ok {
		f.oneof = strings.Split(text, ",")
	}
	if text, ok := sf.Tag.Lookup("bool"); ok {
		f.bools = strings.Split(text, ",")
	}
	return f
}

// parseValue reads one TOML value.
func parseValue(text string) (any, error) {
	var table map[string]any
	if _, err := toml.Decode("v = "+text, &table); err != nil {
		return nil, err
	}
	v, ok := table["v"]
	if !ok || len(table) != 1 {
		return nil, fmt.Errorf("%q is not one value", text)
	}
	return v, nil
}

// Doc is the documentation of a key such as "run.steps"; ok is false for a key that the schema lacks.
func Doc(key string) (doc string, ok bool) {
	f, ok := byKey[key]
	if !ok {
		return "", false
	}
	return f.doc, true
}
