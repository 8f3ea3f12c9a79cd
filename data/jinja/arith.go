package jinja

import (
	"math"
	"math/bits"
	"slices"
	"strings"

	"lockstep/data/ordered"
)

func unary(op string, x any) any {
	if op == "not" {
		return !truth(x)
	}
	mustBeDefined(x)
	i, f, isInt, ok := number(x)
	switch {
	case !ok:
		fail(0, "a %s has no sign", typeName(x))
	case op == "-" && isInt:
		return -i
	case op == "-":
		return -f
	case isInt:
		return i
	}
	return f
}

func (r *run) binary(n *binaryNode) any {
	x := r.eval(n.x)
	switch n.op {
	case "and":
		if !truth(x) {
			return x
		}
		return r.eval(n.y)
	case "or":
		if truth(x) {
			return x
		}
		return r.eval(n.y)
	}
	y := r.eval(n.y)
	if n.op == "~" {
		s, t := r.str(x), r.str(y)
		r.makeString(len(s) + len(t))
		return s + t
	}
	mustBeDefined(x, y)
	if v, ok := r.joinValues(n.op, x, y); ok {
		return v
	}
	return arithmetic(n.op, x, y)
}

// joinValues is + and * of strings and lists; ok is false for other operands.
func (r *run) joinValues(op string, x, y any) (any, bool) {
	switch op {
	case "+":
		switch x := x.(type) {
		case string:
			if y, ok := y.(string); ok {
				r.makeString(len(x) + len(y))
				return x + y, true
			}
		case []any:
			if y, ok := y.([]any); ok {
				r.makeList(len(x) + len(y))
				return append(x[:len(x):len(x)], y...), true
			}
		case tuple:
			if y, ok := y.(tuple); ok {
				r.makeList(len(x) + len(y))
				return append(x[:len(x):len(x)], y...), true
			}
		}
	case "*":
		if _, _, isInt, _ := number(x); isInt {
			x, y = y, x
		}
		if n, _, isInt, _ := number(y); isInt {
			return r.repeat(x, n)
		}
	}
	return nil, false
}

func (r *run) repeat(x any, n int64) (any, bool) {
	n = max(n, 0)
	switch x := x.(type) {
	case string:
		if x == "" {
			return "", true
		}
		r.makeString(len(x) * int(min(n, maxString+1)))
		return strings.Repeat(x, int(n)), true
	case []any:
		if len(x) == 0 {
			return []any{}, true
		}
		r.makeList(len(x) * int(min(n, maxList+1)))
		return slices.Repeat(x, int(n)), true
	}
	return nil, false
}

// arithmetic on numbers: ints stay ints, and one too large for 64 bits is an error, where Python would go on.
func arithmetic(op string, x, y any) any {
	i, f, xInt, xOK := number(x)
	j, g, yInt, yOK := number(y)
	if !xOK || !yOK {
		fail(0, "no %s of a %s and a %s", op, typeName(x), typeName(y))
	}
	if (op == "/" || op == "//" || op == "%") && g == 0 {
		fail(0, "division by zero")
	}
	if xInt && yInt && op != "/" && !(op == "**" && j < 0) {
		return integerArithmetic(op, i, j)
	}
	switch op {
	case "+":
		return f + g
	case "-":
		return f - g
	case "*":
		return f * g
	case "/":
		return f / g
	case "//":
		return floorDivide(f, g)
	case "%":
		m := math.Mod(f, g)
		if m != 0 && (m < 0) != (g < 0) {
			m += g
		}
		return m
	}
	return power(f, g)
}

// floorDivide is Python's // of floats, which rounds the exact quotient rather than the rounded one.
func floorDivide(f, g float64) float64 {
	mod := math.Mod(f, g)
	div := (f - mod) / g
	if mod != 0 && (g < 0) != (mod < 0) {
		div--
	}
	if div == 0 {
		return math.Copysign(0, f/g)
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return floor
}

func power(f, g float64) any {
	p := math.Pow(f, g)
	if math.IsNaN(p) || math.IsInf(p, 0) {
		fail(0, "%v ** %v is not a number", f, g)
	}
	return p
}

func integerArithmetic(op string, i, j int64) int64 {
	switch op {
	case "+":
		v := i + j
		if (v > i) != (j > 0) && j != 0 {
			tooLarge()
		}
		return v
	case "-":
		v := i - j
		if (v < i) != (j > 0) && j != 0 {
			tooLarge()
		}
		return v
	case "*":
		return product(i, j)
	case "//":
		if i == math.MinInt64 && j == -1 {
			tooLarge()
		}
		q := i / j
		if i%j != 0 && (i < 0) != (j < 0) {
			q--
		}
		return q
	case "%":
		if j == -1 {
			return 0
		}
		m := i % j
		if m != 0 && (m < 0) != (j < 0) {
			m += j
		}
		return m
	}
	if i >= -1 && i <= 1 {
		j = min(j, 2-j&1) // the same value, soon
	}
	v := int64(1)
	for ; j > 0; j-- {
		v = product(v, i)
	}
	return v
}

func product(i, j int64) int64 {
	abs := func(v int64) uint64 {
		if v < 0 {
			return -uint64(v)
		}
		return uint64(v)
	}
	hi, lo := bits.Mul64(abs(i), abs(j))
	if hi != 0 || lo > math.MaxInt64 {
		tooLarge()
	}
	return i * j
}

func tooLarge() { fail(0, "an int exceeds 64 bits") }

// contains is Python's "x in list".
func (r *run) contains(list, x any) bool {
	switch l := list.(type) {
	case undefined:
		return false
	case string:
		s, ok := x.(string)
		if !ok {
			fail(0, "only a str can be in a str, not a %s", typeName(x))
		}
		r.read(len(l))
		return strings.Contains(l, s)
	case *ordered.Dict:
		if _, ok := x.(undefined); ok {
			return false
		}
		_, ok := l.Get(r.key(x))
		return ok
	}
	for _, y := range r.elements(list) {
		if r.equal(x, y) {
			return true
		}
	}
	return false
}
