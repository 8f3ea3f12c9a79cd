package main

import (
	"fmt"
	"strings"
)

// value is a vector register to be: computed in the block, or a constant or scalar that init loads.
type value struct {
	init string // loads {d}; empty for computed values
}

// step is one or more instructions with one result, written by the last that reads an argument. {d} is its register,
// {0}, {1}, ... those of its arguments; {d:X}, {0:X} their lowest 128 bits.
type step struct {
	text string
	args []*value
	dst  *value
	tied bool // dst takes the register of args[0], which must not be needed later

	apart bool // dst takes a register that no argument has
}

// block is a straight line of code over one vector of each slice. The same code runs for full vectors and, masked, for
// the tail.
type block struct {
	m      *isa
	tail   bool
	slices map[string]string // address of the present vector
	kinds  map[string]string
	inits  map[string]*value // constants and scalars by what loads them, in order of first use
	order  []*value
	steps  []step
}

func (b *block) do(text string, args ...*value) *value {
	v := new(value)
	b.steps = append(b.steps, step{text: text, args: args, dst: v})
	return v
}

// over is do with the result in the register of the first argument, which must not be needed later.
func (b *block) over(text string, args ...*value) *value {
	v := new(value)
	b.steps = append(b.steps, step{text: text, args: args, dst: v, tied: true})
	return v
}

// act is do without a result.
func (b *block) act(text string, args ...*value) {
	b.steps = append(b.steps, step{text: text, args: args})
}

func (b *block) shared(init string) *value {
	v := b.inits[init]
	if v == nil {
		v = &value{init: init}
		b.inits[init] = v
		b.order = append(b.order, v)
	}
	return v
}

// text is the code, with the values of fixed in their registers and others wherever one is free; ok is false if
// registers run out.
func (b *block) text(fixed map[*value]int) (text string, ok bool) {
	steps := b.expanded(fixed)
	last := map[*value]int{}
	for i, s := range steps {
		for _, a := range s.args {
			last[a] = i
		}
	}
	at, used := map[*value]int{}, make([]bool, b.m.free)
	for v, r := range fixed {
		at[v], used[r] = r, true
	}
	var out strings.Builder
	for i, s := range steps {
		regs := make([]int, len(s.args))
		for k, a := range s.args {
			regs[k] = at[a]
		}
		if !s.apart {
			b.release(s, i, last, fixed, at, used)
		}
		d := -1
		if s.dst != nil {
			if d = pick(used, s, regs); d < 0 {
				return "", false
			}
			at[s.dst], used[d] = d, true
		}
		if s.apart {
			b.release(s, i, last, fixed, at, used)
		}
		out.WriteString(b.m.fill(s.text, d, regs))
	}
	return out.String(), true
}

// release frees the registers of arguments that step i is the last to read.
func (b *block) release(s step, i int, last map[*value]int, fixed, at map[*value]int, used []bool) {
	for _, a := range s.args {
		if _, hold := fixed[a]; !hold && last[a] == i {
			used[at[a]] = false
		}
	}
}

// expanded is the steps with a load before each use of a constant or scalar that has no fixed register.
func (b *block) expanded(fixed map[*value]int) []step {
	var out []step
	for _, s := range b.steps {
		s.args = append([]*value(nil), s.args...)
		for k, a := range s.args {
			if _, ok := fixed[a]; !ok && a.init != "" {
				s.args[k] = new(value)
				out = append(out, step{text: a.init, dst: s.args[k]})
			}
		}
		out = append(out, s)
	}
	return out
}

// pick is a register for the result of s: that of its first argument if tied, otherwise the first free one.
func pick(used []bool, s step, regs []int) int {
	if s.tied {
		if used[regs[0]] {
			panic("gen: a tied argument is needed later: " + s.text)
		}
		return regs[0]
	}
	for r, taken := range used {
		if !taken {
			return r
		}
	}
	return -1
}

func (m *isa) fill(text string, d int, args []int) string {
	for k, r := range append([]int{d}, args...) {
		key := "d"
		if k > 0 {
			key = fmt.Sprint(k - 1)
		}
		text = strings.ReplaceAll(text, "{"+key+"}", m.register(r))
		text = strings.ReplaceAll(text, "{"+key+":X}", fmt.Sprintf("X%d", r))
	}
	return lines(strings.Split(text, "; ")...)
}
