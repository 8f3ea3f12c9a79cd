package ordered

import (
	"iter"
	"slices"
)

// Dict is a mapping that keeps the order of insertion. Its keys are strings, as in JSON; dicts that a chat template
// makes may also have nil, booleans and numbers for keys, and as in Python 1, 1.0 and true are one key. Create one by
// [NewDict].
type Dict struct {
	keys   []any
	values map[any]any // by Hash
}

// NewDict is an empty dict.
func NewDict() *Dict { return &Dict{values: map[any]any{}} }

// Hash is equal for keys that are equal: 1, 1.0 and true have one hash. ok is false for a value that cannot be a key.
func Hash(key any) (hash any, ok bool) {
	switch k := key.(type) {
	case nil, string, int64:
		return k, true
	case bool:
		if k {
			return int64(1), true
		}
		return int64(0), true
	case float64:
		if k == float64(int64(k)) {
			return int64(k), true
		}
		return k, true
	}
	return nil, false
}

// mustHash panics where a key has no hash: the caller checks keys that come from outside.
func mustHash(key any) any {
	h, ok := Hash(key)
	if !ok {
		panic("ordered: a key is neither nil, a bool, a number nor a string")
	}
	return h
}

// Set adds a key or replaces its value; a replaced one keeps its place. It panics on a key without a [Hash].
func (d *Dict) Set(key, value any) {
	h := mustHash(key)
	if _, ok := d.values[h]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[h] = value
}

// Get is the value of a key. It panics on a key without a [Hash].
func (d *Dict) Get(key any) (any, bool) {
	v, ok := d.values[mustHash(key)]
	return v, ok
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// Keys are the keys in order; not to be changed.
func (d *Dict) Keys() []any { return d.keys }

// All iterates over keys and values in order.
func (d *Dict) All() iter.Seq2[any, any] {
	return func(yield func(key, value any) bool) {
		for _, k := range d.keys {
			if !yield(k, d.values[mustHash(k)]) {
				return
			}
		}
	}
}

// Clone is a copy of the dict with the same values.
func (d *Dict) Clone() *Dict {
	c := NewDict()
	for k, v := range d.All() {
		c.Set(k, v)
	}
	return c
}

// EqualFunc reports whether two dicts have equal keys, in any order, and values that equal calls equal.
func (d *Dict) EqualFunc(other *Dict, equal func(a, b any) bool) bool {
	if d.Len() != other.Len() {
		return false
	}
	for k, v := range d.All() {
		if w, ok := other.Get(k); !ok || !equal(v, w) {
			return false
		}
	}
	return true
}

// Equal reports whether two values of [Decode] are equal, as Python's == of json.loads: 1 equals 1.0 and true, and the
// order of keys does not matter.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case []any:
		l, ok := b.([]any)
		return ok && slices.EqualFunc(a, l, Equal)
	case *Dict:
		d, ok := b.(*Dict)
		return ok && a.EqualFunc(d, Equal)
	}
	h, ok := Hash(a)
	g, both := Hash(b)
	return ok && both && h == g
}
