package jinja

import "strings"

// Dict is a mapping that keeps the order of insertion, as Python's does.
type Dict struct {
	keys   []any
	values map[any]any // by hash
}

// NewDict is an empty dict.
func NewDict() *Dict { return &Dict{values: map[any]any{}} }

// hash makes equal keys equal: 1, 1.0 and True are one key.
func hash(key any) any {
	switch k := key.(type) {
	case nil, string:
		return k
	}
	if i, f, isInt, ok := number(key); ok {
		if isInt {
			return i
		}
		if f == float64(int64(f)) {
			return int64(f)
		}
		return f
	}
	fail(0, "a %s cannot be the key of a dict", typeName(key))
	return nil
}

// Set adds a key or replaces its value; a replaced one keeps its place.
func (d *Dict) Set(key, value any) {
	h := hash(key)
	if _, ok := d.values[h]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[h] = value
}

// Get is the value of a key.
func (d *Dict) Get(key any) (any, bool) {
	v, ok := d.values[hash(key)]
	return v, ok
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// Keys are the keys in order; not to be changed.
func (d *Dict) Keys() []any { return d.keys }

func (d *Dict) at(i int) any { return d.values[hash(d.keys[i])] }

func (d *Dict) items() []any {
	list := make([]any, len(d.keys))
	for i, k := range d.keys {
		list[i] = tuple{k, d.at(i)}
	}
	return list
}

func (d *Dict) list() []any {
	list := make([]any, len(d.keys))
	for i := range d.keys {
		list[i] = d.at(i)
	}
	return list
}

func (d *Dict) copy() *Dict {
	c := NewDict()
	for i, k := range d.keys {
		c.Set(k, d.at(i))
	}
	return c
}

func (d *Dict) equal(other *Dict, depth int) bool {
	if d.Len() != other.Len() {
		return false
	}
	for i, k := range d.keys {
		v, ok := other.Get(k)
		if !ok || !equalTo(d.at(i), v, depth) {
			return false
		}
	}
	return true
}

func (d *Dict) writeRepr(b *strings.Builder, depth int) {
	b.WriteByte('{')
	for i, k := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		writeRepr(b, k, depth+1)
		b.WriteString(": ")
		writeRepr(b, d.at(i), depth+1)
	}
	b.WriteByte('}')
}
