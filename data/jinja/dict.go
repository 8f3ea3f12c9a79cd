package jinja

import "lockstep/data/ordered"

// key is k, which must be able to be the key of a dict.
func key(k any) any {
	if _, ok := ordered.Hash(k); !ok {
		fail(0, "a %s cannot be the key of a dict", typeName(k))
	}
	return k
}

// items are the pairs (key, value) of a dict.
func items(d *ordered.Dict) []any {
	list := make([]any, 0, d.Len())
	for k, v := range d.All() {
		list = append(list, tuple{k, v})
	}
	return list
}

func values(d *ordered.Dict) []any {
	list := make([]any, 0, d.Len())
	for _, v := range d.All() {
		list = append(list, v)
	}
	return list
}
