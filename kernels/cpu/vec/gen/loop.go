package main

import (
	"fmt"
	"strings"
)

// loop is an elementwise function: line describes one vector, by names of the signature.
type loop struct {
	function
	line func(b *block, scalar func(name string) *value)
}

var pointers = []string{"DI", "SI", "R8", "R9", "R10", "R11", "R12", "R13"}

// assemble is the function: full vectors, then one masked tail. AX counts elements, DX is the end of full vectors.
func (l loop) assemble(m *isa) string {
	args, _ := l.arguments()
	var out strings.Builder
	out.WriteString("\n" + l.open(m, 0))
	slices, kinds, scalars, n := map[string]string{}, map[string]string{}, map[string]string{}, ""
	next := 0
	for _, a := range args {
		if a.kind == "float32" {
			scalars[a.name] = fmt.Sprintf("VBROADCASTSS %s+%d(FP), {d}", a.name, a.offset)
			continue
		}
		p, kind := pointers[next], a.kind
		next++
		if kind == "*" {
			fmt.Fprintf(&out, "\tMOVQ %s+%d(FP), %s\n", a.name, a.offset, p)
			for i, field := range adamWFields {
				scalars[field] = fmt.Sprintf("VBROADCASTSS %d(%s), {d}", 4*i, p)
			}
			continue
		}
		fmt.Fprintf(&out, "\tMOVQ %s_base+%d(FP), %s\n", a.name, a.offset, p)
		if n == "" {
			n = fmt.Sprintf("%s_len+%d(FP)", a.name, a.offset+8)
		}
		size := 4
		if kind == "[]uint16" {
			size = 2
		}
		slices[a.name], kinds[a.name] = fmt.Sprintf("(%s)(AX*%d)", p, size), kind
	}
	main := l.block(m, false, slices, kinds, scalars, nil)
	tail := main
	if l.masked(m) {
		tail = l.block(m, true, slices, kinds, scalars, main)
	}
	before, body, after := allocate(main, tail)
	out.WriteString(lines("MOVQ "+n+", CX", "XORQ AX, AX", "MOVQ CX, DX", fmt.Sprintf("ANDQ $-%d, DX", m.lanes)))
	out.WriteString(before)
	out.WriteString(lines("CMPQ AX, DX", "JGE rest") + "\nnext:\n" + body)
	out.WriteString(lines(fmt.Sprintf("ADDQ $%d, AX", m.lanes), "CMPQ AX, DX", "JLT next") + "\nrest:\n")
	if l.masked(m) {
		out.WriteString(lines("SUBQ AX, CX", "JZ done") + m.mask() + after + "\ndone:\n")
	}
	return out.String() + lines("VZEROUPPER", "RET")
}

// masked tells whether the function has a tail. AVX2 cannot mask 16-bit elements: those functions are for full vectors
// only.
func (l loop) masked(m *isa) bool { return m == avx512 || !strings.Contains(l.signature, "uint16") }

// block records one vector's code; with other given, constants and scalars are shared with it.
func (l loop) block(m *isa, tail bool, slices, kinds, scalars map[string]string, other *block) *block {
	b := &block{m: m, tail: tail, slices: slices, kinds: kinds, inits: map[string]*value{}}
	if other != nil {
		b.inits = other.inits
	}
	l.line(b, func(name string) *value { return b.shared(scalars[name]) })
	return b
}

// allocate keeps as many constants and scalars in registers across the loop as leave enough for the block, first used
// first.
func allocate(main, tail *block) (before, body, after string) {
	for keep := len(main.order); keep >= 0; keep-- {
		fixed := map[*value]int{}
		before = ""
		if keep >= main.m.free {
			continue
		}
		for i, v := range main.order[:keep] {
			fixed[v] = main.m.free - 1 - i
			before += main.m.fill(v.init, fixed[v], nil)
		}
		body, okBody := main.text(fixed)
		after, okAfter := tail.text(fixed)
		if okBody && okAfter {
			return before, body, after
		}
	}
	panic("gen: a block needs more registers than there are")
}
