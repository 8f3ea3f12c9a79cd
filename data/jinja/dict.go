package jinja

import "lockstep/data/ordered"

// key is k, which must be able to be the key of a dict.
func (r *run) key(k any) any {
	if s, ok := k.(string); ok {
		r.read(len(s))
	}
	if _, ok := ordered.Hash(k); !ok {
		fail(0, "a %s cannot be the key of a dict", typeName(k))
	}
	return k
}

// items are the pairs (key, value) of a dict.
func (r *run) items(d *ordered.Dict) []any {
	r.makeList(3 * d.Len())
	list := make([]any, 0, d.Len())
	for k, v := range d.All() {
		list = append(list, tuple{k, v})
	}
	return list
}

func (r *run) values(d *ordered.Dict) []any {
	r.makeList(d.Len())
	list := make([]any, 0, d.Len())
	for _, v := range d.All() {
		list = append(list, v)
	}
	return list
}
