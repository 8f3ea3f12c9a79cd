package jinja

import (
	"context"
	"time"
)

// flow says how a statement ended.
type flow int

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

// scope is the variables of a template, loop, macro or block; names are looked up outwards and set in the innermost
// one.
type scope struct {
	vars  map[string]any
	outer *scope
}

// run is one rendering.
type run struct {
	budget
	out       *writer // of the innermost block that collects text
	scope     *scope
	now       time.Time
	depth     int // of macro calls
	captures  int // blocks that collect text around this place
	generated [][2]int
	inside    bool // a generation block
}

func newRun(ctx context.Context, vars map[string]any, now time.Time) *run {
	base := &scope{vars: globals}
	r := &run{budget: budget{ctx: ctx, steps: maxSteps, made: maxMade}, now: now, scope: &scope{vars: map[string]any{},
		outer: &scope{vars: vars, outer: base}}}
	r.out = r.writer()
	return r
}

func (s *scope) lookup(name string) any {
	for ; s != nil; s = s.outer {
		if v, ok := s.vars[name]; ok {
			return v
		}
	}
	return undefined{name}
}

// within runs f in a scope of its own.
func (r *run) within(outer *scope, f func()) {
	r.take(sizeScope)
	saved := r.scope
	r.scope = &scope{vars: map[string]any{}, outer: outer}
	f()
	r.scope = saved
}

// capture collects what f writes.
func (r *run) capture(f func()) string {
	saved := r.out
	r.out = r.writer()
	r.captures++
	f()
	text := r.out.String()
	r.captures--
	r.out = saved
	return text
}

func (r *run) stmts(list []stmt) flow {
	for _, s := range list {
		if f := r.stmt(s); f != flowNext {
			return f
		}
	}
	return flowNext
}

// stmt runs one statement; a failure inside it gets its line.
func (r *run) stmt(s stmt) (f flow) {
	defer func() {
		if x := recover(); x != nil {
			if e, ok := x.(*failure); ok && e.line == 0 {
				e.line = s.at()
			}
			panic(x)
		}
	}()
	r.spend(1)
	switch s := s.(type) {
	case textStmt:
		r.out.str(s.text)
	case printStmt:
		r.out.str(r.str(r.eval(s.value)))
	case ifStmt:
		if truth(r.eval(s.test)) {
			return r.stmts(s.then)
		}
		return r.stmts(s.alt)
	case forStmt:
		r.loop(s)
	case setStmt:
		r.set(s)
	case setBlockStmt:
		text := r.capture(func() { r.within(r.scope, func() { r.stmts(s.body) }) })
		r.assign(s.target, r.apply(text, s.filters))
	case macroStmt:
		r.scope.vars[s.macro.name] = r.function(s.macro)
	case callStmt:
		r.callBlock(s)
	case filterStmt:
		text := r.capture(func() { r.within(r.scope, func() { f = r.stmts(s.body) }) })
		r.out.str(r.str(r.apply(text, s.filters)))
	case withStmt:
		r.with(s)
	case generationStmt:
		r.generation(s)
	case flowStmt:
		return s.flow
	}
	return f
}

// generation runs the block and notes the range of the output that it made.
func (r *run) generation(s generationStmt) {
	if r.captures > 0 || r.inside {
		fail(0, "a generation block inside a macro, or any block that collects text, is not supported")
	}
	start := r.out.Len()
	r.inside = true
	r.within(r.scope, func() { r.stmts(s.body) })
	r.inside = false
	r.generated = append(r.generated, [2]int{start, r.out.Len()})
}

func (r *run) with(s withStmt) {
	values := make([]any, len(s.values))
	for i, v := range s.values {
		values[i] = r.eval(v)
	}
	r.within(r.scope, func() {
		for i, name := range s.names {
			r.scope.vars[name] = values[i]
		}
		r.stmts(s.body)
	})
}

func (r *run) set(s setStmt) {
	v := r.eval(s.value)
	if !s.unpack {
		r.assign(s.targets[0], v)
		return
	}
	list := r.elements(v)
	if len(list) != len(s.targets) {
		fail(0, "%d values cannot be set to %d names", len(list), len(s.targets))
	}
	for i, t := range s.targets {
		r.assign(t, list[i])
	}
}

func (r *run) assign(t target, v any) {
	if t.attr == "" {
		r.scope.vars[t.name] = v
		return
	}
	ns, ok := r.scope.lookup(t.name).(*namespace)
	if !ok {
		fail(0, "%s is not a namespace, its attribute %s cannot be set", t.name, t.attr)
	}
	ns.vars[t.attr] = v
}

// function makes a macro callable; it sees the scope that it was defined in.
func (r *run) function(m *macro) function {
	home := r.scope
	return func(r *run, c call) any {
		if r.depth++; r.depth > maxDepth {
			fail(0, "macros call each other more than %d deep", maxDepth)
		}
		defer func() { r.depth-- }()
		return r.capture(func() {
			r.within(home, func() {
				r.bindMacro(m, c)
				r.stmts(m.body)
			})
		})
	}
}

// bindMacro sets the parameters. A parameter left out is its default, computed in the macro's scope, or undefined.
func (r *run) bindMacro(m *macro, c call) {
	if len(c.list) > len(m.params) {
		fail(0, "macro %s takes %d arguments, not %d", m.name, len(m.params), len(c.list))
	}
	r.makeDict(len(c.list) + len(c.names))
	given := map[string]any{}
	for i, v := range c.list {
		given[m.params[i]] = v
	}
	for i, name := range c.names {
		_, twice := given[name]
		known := name == "caller" && m.caller
		for _, p := range m.params {
			known = known || p == name
		}
		if twice || !known {
			fail(0, "macro %s takes no (second) argument %s", m.name, name)
		}
		given[name] = c.named[i]
	}
	for i, p := range m.params {
		v, ok := given[p]
		if d := i - (len(m.params) - len(m.defaults)); !ok && d >= 0 {
			v, ok = r.eval(m.defaults[d]), true
		}
		if !ok {
			v = undefined{p}
		}
		r.scope.vars[p] = v
	}
	if m.caller {
		r.scope.vars["caller"] = undefined{"caller"}
		if v, ok := given["caller"]; ok {
			r.scope.vars["caller"] = v
		}
	}
}

func (r *run) callBlock(s callStmt) {
	c := r.args(s.call.args)
	c.names, c.named = append(c.names, "caller"), append(c.named, r.function(s.caller))
	r.out.str(r.str(r.call(r.eval(s.call.fn), c)))
}
