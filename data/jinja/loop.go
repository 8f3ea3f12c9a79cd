package jinja

// loop is the variable of that name inside a for block.
type loop struct {
	items   []any
	index0  int
	changed []any // arguments of the last loop.changed()
	called  bool
}

func (l *loop) attr(name string) any {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.index0 + 1)
	case "index0":
		return int64(l.index0)
	case "revindex":
		return int64(n - l.index0)
	case "revindex0":
		return int64(n - l.index0 - 1)
	case "first":
		return l.index0 == 0
	case "last":
		return l.index0 == n-1
	case "length":
		return int64(n)
	case "depth":
		return int64(1)
	case "depth0":
		return int64(0)
	case "previtem":
		if l.index0 > 0 {
			return l.items[l.index0-1]
		}
	case "nextitem":
		if l.index0 < n-1 {
			return l.items[l.index0+1]
		}
	case "cycle":
		return function(func(r *run, c call) any {
			if len(c.list) == 0 {
				fail(0, "loop.cycle needs something to cycle through")
			}
			return c.list[l.index0%len(c.list)]
		})
	case "changed":
		return function(func(r *run, c call) any {
			same := l.called && r.equal(l.changed, c.list)
			l.changed, l.called = c.list, true
			return !same
		})
	}
	return undefined{"loop." + name}
}

// loop runs a for block. Each iteration has its own scope; the filter sees the loop's variables, but not "loop".
func (r *run) loop(s forStmt) {
	items := r.elements(r.eval(s.in))
	if s.filter != nil {
		items = r.filterItems(s, items)
	}
	if len(items) == 0 {
		r.within(r.scope, func() { r.stmts(s.alt) })
		return
	}
	l := &loop{items: items}
	for l.index0 = range items {
		var f flow
		r.within(r.scope, func() {
			r.bind(s, items[l.index0])
			r.scope.vars["loop"] = l
			f = r.stmts(s.body)
		})
		if f == flowBreak {
			return
		}
	}
}

func (r *run) filterItems(s forStmt, items []any) (kept []any) {
	for _, item := range items {
		r.within(r.scope, func() {
			r.bind(s, item)
			if truth(r.eval(s.filter)) {
				kept = append(kept, item)
			}
		})
	}
	return kept
}

func (r *run) bind(s forStmt, item any) {
	r.spend(1)
	if !s.unpack {
		r.scope.vars[s.targets[0]] = item
		return
	}
	parts := r.elements(item)
	if len(parts) != len(s.targets) {
		fail(0, "an element of %d parts cannot be taken apart into %d names", len(parts), len(s.targets))
	}
	for i, name := range s.targets {
		r.scope.vars[name] = parts[i]
	}
}
