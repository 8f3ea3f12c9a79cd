package data

import (
	"strconv"
	"strings"
)

// expr is an arithmetic expression and its value; op is 0 at a number.
type expr struct {
	value       int
	op          byte
	left, right *expr
}

// combine joins two values by a step, the larger one on the left; nil where the step is not allowed: the result must be
// a positive integer up to maxValue and neither of the operands (x*1 and the like lead nowhere: the operand was there
// already).
func combine(a, b *expr, op byte) *expr {
	if a.value < b.value {
		a, b = b, a
	}
	var v int
	switch op {
	case '+':
		v = a.value + b.value
	case '-':
		v = a.value - b.value
	case '*':
		v = a.value * b.value
	case '/':
		if a.value%b.value != 0 {
			return nil
		}
		v = a.value / b.value
	}
	if v < 1 || v > maxValue || v == a.value || v == b.value {
		return nil
	}
	return &expr{value: v, op: op, left: a, right: b}
}

// precedence of an operator; a number binds tightest.
func precedence(op byte) int {
	switch op {
	case '+', '-':
		return 1
	case '*', '/':
		return 2
	}
	return 3
}

// String writes the expression with the fewest parentheses.
func (e *expr) String() string {
	if e.op == 0 {
		return strconv.Itoa(e.value)
	}
	left, right := e.left.String(), e.right.String()
	p, l, r := precedence(e.op), precedence(e.left.op), precedence(e.right.op)
	if l < p {
		left = "(" + left + ")"
	}
	if r < p || r == p && (e.op == '-' || e.op == '/') {
		right = "(" + right + ")"
	}
	return left + string(e.op) + right
}

// step writes the last step alone, such as "28+2=30".
func (e *expr) step() string {
	return strconv.Itoa(e.left.value) + string(e.op) + strconv.Itoa(e.right.value) + "=" + strconv.Itoa(e.value)
}

// steps lists every step, operands before what they make.
func (e *expr) steps() []string {
	if e.op == 0 {
		return nil
	}
	return append(append(e.left.steps(), e.right.steps()...), e.step())
}

// solve searches for an expression of numbers, each used at most once, that equals target, with positive integers all
// the way; nil: there is none. The search is exhaustive and deterministic; it prefers few steps, then earlier numbers,
// then earlier operators.
func (c Countdown) solve(numbers []int, target int) *expr {
	pool := leaves(numbers)
	for _, e := range pool {
		if e.value == target {
			return e
		}
	}
	for depth := 1; depth < len(pool); depth++ {
		if e := c.within(pool, depth, target); e != nil {
			return e
		}
	}
	return nil
}

// within searches for the target in exactly depth steps or fewer.
func (c Countdown) within(pool []*expr, depth, target int) *expr {
	for i := range pool {
		for j := i + 1; j < len(pool); j++ {
			for k := range len(c.Operators) {
				e := combine(pool[i], pool[j], c.Operators[k])
				if e == nil {
					continue
				}
				if e.value == target {
					return e
				}
				if depth == 1 {
					continue
				}
				if found := c.within(join(pool, i, j, e), depth-1, target); found != nil {
					return found
				}
			}
		}
	}
	return nil
}

// join is the pool after elements i and j became e, which comes first.
func join(pool []*expr, i, j int, e *expr) []*expr {
	next := append(make([]*expr, 0, len(pool)-1), e)
	for k, x := range pool {
		if k != i && k != j {
			next = append(next, x)
		}
	}
	return next
}

func leaves(numbers []int) []*expr {
	pool := make([]*expr, len(numbers))
	for i, n := range numbers {
		pool[i] = &expr{value: n}
	}
	return pool
}

// trace is a depth-first search written down as it goes. Each try is one event: a first or middle step "7+4=11"; with
// two values left the results of joining them, in the order of the operators, ":13 9 22", up to the target.
type trace struct {
	c      Countdown
	target int
	events []string
	bytes  int
}

// search is the first expression found depth first; nil if there is none.
func (t *trace) search(pool []*expr) *expr {
	for i := range pool {
		for j := i + 1; j < len(pool); j++ {
			for k := range len(t.c.Operators) {
				e := combine(pool[i], pool[j], t.c.Operators[k])
				if e == nil {
					continue
				}
				t.note(e, len(pool))
				if e.value == t.target {
					return e
				}
				if len(pool) == 2 {
					continue
				}
				if found := t.search(join(pool, i, j, e)); found != nil {
					return found
				}
			}
		}
	}
	return nil
}

// note writes a try until the text is full.
func (t *trace) note(e *expr, pool int) {
	event := "," + e.step()
	if pool == 2 {
		event = " " + strconv.Itoa(e.value)
	}
	if t.bytes += len(event); t.bytes <= maxTrace {
		t.events = append(t.events, event)
	}
}

// maxTrace is the length in bytes that a written search may have before its solution.
const maxTrace = 256

// text is the written search without its first separator; a search too long is cut, and goes straight to the steps of
// the solution.
func (t *trace) text(found *expr) string {
	if t.bytes > maxTrace {
		t.events = append(t.events, ","+strings.Join(found.steps(), ","))
	}
	return strings.Join(t.events, "")[1:]
}
