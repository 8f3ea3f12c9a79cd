package jinja

import "lockstep/data/ordered"

// eval computes an expression.
func (r *run) eval(n node) any {
	r.spend(1)
	switch n := n.(type) {
	case *constNode:
		return n.value
	case *nameNode:
		return r.scope.lookup(n.name)
	case *listNode:
		return r.evalAll(n.items)
	case *tupleNode:
		return tuple(r.evalAll(n.items))
	case *dictNode:
		r.makeDict(len(n.keys))
		d := ordered.NewDict()
		for i := range n.keys {
			d.Set(r.key(r.eval(n.keys[i])), r.eval(n.values[i]))
		}
		return d
	case *unaryNode:
		return unary(n.op, r.eval(n.x))
	case *binaryNode:
		return r.binary(n)
	case *compareNode:
		return r.comparison(n)
	case *condNode:
		return r.cond(n)
	case *attrNode:
		return r.attr(r.eval(n.x), n.name)
	case *indexNode:
		return r.item(r.eval(n.x), r.eval(n.i))
	case *sliceNode:
		return r.slice(n)
	case *callNode:
		return r.call(r.eval(n.fn), r.args(n.args))
	case *filterNode:
		return filterOf(n.call.name)(r, r.eval(n.x), r.args(n.call.args))
	case *testNode:
		return testOf(n.name)(r, r.eval(n.x), r.args(n.args))
	}
	panic("jinja: unknown node")
}

func (r *run) evalAll(list []node) []any {
	r.makeList(len(list))
	values := make([]any, len(list))
	for i, n := range list {
		values[i] = r.eval(n)
	}
	return values
}

func (r *run) cond(n *condNode) any {
	if truth(r.eval(n.test)) {
		return r.eval(n.then)
	}
	if n.alt == nil {
		return undefined{"the value of an if without else"}
	}
	return r.eval(n.alt)
}

func (r *run) comparison(n *compareNode) any {
	x := r.eval(n.x)
	for i, op := range n.ops {
		y := r.eval(n.ys[i])
		if !r.holds(x, op, y) {
			return false
		}
		x = y
	}
	return true
}

// holds is one comparison.
func (r *run) holds(x any, op string, y any) bool {
	switch op {
	case "==":
		return r.equal(x, y)
	case "!=":
		return !r.equal(x, y)
	case "in":
		return r.contains(y, x)
	case "not in":
		return !r.contains(y, x)
	}
	mustBeDefined(x, y)
	c := r.compare(x, y)
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

func mustBeDefined(values ...any) {
	for _, v := range values {
		if u, ok := v.(undefined); ok {
			fail(0, "%s is undefined", u.name)
		}
	}
}

// attr is x.name: a method or attribute of x, else its item of that name.
func (r *run) attr(x any, name string) any {
	mustBeDefined(x)
	if v, ok := attribute(x, name); ok {
		return v
	}
	if d, ok := x.(*ordered.Dict); ok {
		if v, ok := d.Get(name); ok {
			return v
		}
	}
	return undefined{typeName(x) + "." + name}
}

// item is x[i]: the item, else the attribute of that name.
func (r *run) item(x, i any) any {
	mustBeDefined(x)
	if d, ok := x.(*ordered.Dict); ok {
		_, isList := sequence(i)
		if _, unknown := i.(undefined); !isList && !unknown { // a list is no key, and neither is nothing
			if v, ok := d.Get(r.key(i)); ok {
				return v
			}
		}
	} else if at, _, isInt, _ := number(i); isInt {
		if v, ok := r.element(x, int(at)); ok {
			return v
		}
	}
	if name, ok := i.(string); ok {
		if v, ok := attribute(x, name); ok {
			return v
		}
	}
	if s, ok := i.(string); ok {
		return undefined{typeName(x) + "[" + short(s) + "]"}
	}
	return undefined{"an item of a " + typeName(x)}
}

// element is x[i] of a list or string, from the end if i is negative.
func (r *run) element(x any, i int) (any, bool) {
	list, ok := sequence(x)
	if s, isString := x.(string); isString {
		return r.character(s, i)
	}
	if !ok {
		return nil, false
	}
	if i < 0 {
		i += len(list)
	}
	if i < 0 || i >= len(list) {
		return nil, false
	}
	return list[i], true
}

// character is s[i] in code points.
func (r *run) character(s string, i int) (any, bool) {
	chars := r.runes(s)
	if i < 0 {
		i += len(chars)
	}
	if i < 0 || i >= len(chars) {
		return nil, false
	}
	return string(chars[i]), true
}

func (r *run) runes(s string) []rune {
	r.take(4 * len(s))
	return []rune(s)
}

// slice is x[start:stop:step] by Python's rules.
func (r *run) slice(n *sliceNode) any {
	x := r.eval(n.x)
	mustBeDefined(x)
	if s, ok := x.(string); ok {
		chars := r.runes(s)
		r.makeString(len(s))
		return string(cut(chars, r.bounds(n, len(chars))))
	}
	switch x := x.(type) {
	case []any:
		r.makeList(len(x))
		return cut(x, r.bounds(n, len(x)))
	case tuple:
		r.makeList(len(x))
		return cut(x, r.bounds(n, len(x)))
	}
	fail(0, "a %s cannot be sliced", typeName(x))
	return nil
}

// cut is the elements at start, start+step, ... before stop.
func cut[S ~[]E, E any](list S, b [3]int) S {
	start, stop, step := b[0], b[1], b[2]
	part := S{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		part = append(part, list[i])
	}
	return part
}

// bounds are the start, stop and step of a slice of n elements (slice.indices of Python).
func (r *run) bounds(s *sliceNode, n int) [3]int {
	read := func(at node, otherwise, low, high int) int {
		if at == nil {
			return otherwise
		}
		v := r.eval(at)
		if v == nil {
			return otherwise
		}
		i := integer(v, "a slice's bound")
		if i < 0 {
			i += n
		}
		return max(low, min(i, high))
	}
	step := 1
	if s.step != nil {
		if v := r.eval(s.step); v != nil {
			step = max(-maxString, min(integer(v, "a slice's step"), maxString))
		}
	}
	if step == 0 {
		fail(0, "a slice's step is 0")
	}
	step = max(-maxString, min(step, maxString))
	if step > 0 {
		return [3]int{read(s.start, 0, 0, n), read(s.stop, n, 0, n), step}
	}
	return [3]int{read(s.start, n-1, -1, n-1), read(s.stop, -1, -1, n-1), step}
}
