package jinja

import (
	"context"
	"strings"
)

// The bounds of a rendering. They are far above what conversations need.
const (
	maxSource = 1 << 20   // bytes of a template
	maxSteps  = 2_000_000 // see budget.spend
	maxMade   = 1 << 28   // bytes of all strings, lists and scopes that are made, those that are dropped again too
	maxDepth  = 200       // nesting of source, of macro calls and of printed values
	maxString = 1 << 24   // bytes of a string
	maxList   = 1 << 20   // elements of a list
	maxRange  = 100_000   // elements of a range, as in jinja2's sandbox
)

// What values take, in bytes, about.
const (
	sizeElement = 16  // of a list
	sizeEntry   = 64  // of a dict
	sizeScope   = 320 // with a few variables
	sizeCased   = 512 // on the way of a word to another case
)

// budget counts what a rendering takes, whatever part of it works: statements and expressions, filters and methods,
// comparisons, joins and repetitions.
type budget struct {
	ctx         context.Context
	steps, made int // left
	unseen      int // steps since ctx was last looked at
	rest        int // bytes that are read and not yet a step
}

// spend counts steps: 1 for a statement, an expression, or an element that is looked at, and 1 for 64 bytes that are
// read or made. A rendering ends where its context does.
func (b *budget) spend(steps int) {
	if b.steps -= steps; b.steps < 0 {
		fail(0, "the template takes more than %d steps", maxSteps)
	}
	if b.unseen += steps; b.unseen >= 1000 {
		b.unseen = 0
		if err := b.ctx.Err(); err != nil {
			panic(&failure{cause: err})
		}
	}
}

// read counts n bytes that are looked at.
func (b *budget) read(n int) {
	if b.rest += n; b.rest >= 64 {
		b.spend(b.rest / 64)
		b.rest %= 64
	}
}

// decode counts n bytes that are looked at as characters, one by one, which takes some eight times as long.
func (b *budget) decode(n int) { b.read(8 * n) }

// take counts n bytes that are made.
func (b *budget) take(n int) {
	b.read(n)
	if b.made -= n; b.made < 0 {
		fail(0, "the template makes more than %d bytes of strings and lists", maxMade)
	}
}

// makeString counts a string of n bytes; it comes before the string is made.
func (b *budget) makeString(n int) {
	if n > maxString || n < 0 {
		fail(0, "a string exceeds %d bytes", maxString)
	}
	b.take(n)
}

// makeList counts a list of n elements; it comes before the list is made.
func (b *budget) makeList(n int) {
	if n > maxList || n < 0 {
		fail(0, "a list exceeds %d elements", maxList)
	}
	b.take(n * sizeElement)
}

// makeDict counts a dict of n keys.
func (b *budget) makeDict(n int) { b.take((n + 1) * sizeEntry) }

// writer collects a text and counts it.
type writer struct {
	r *run
	b strings.Builder
}

func (r *run) writer() *writer { return &writer{r: r} }

func (w *writer) count(n int) {
	if w.b.Len()+n > maxString {
		w.r.makeString(maxString + 1)
	}
	w.r.take(n)
}

// Write is for package fmt.
func (w *writer) Write(p []byte) (int, error) { w.count(len(p)); return w.b.Write(p) }

func (w *writer) str(s string)   { w.count(len(s)); w.b.WriteString(s) }
func (w *writer) byte(c byte)    { w.count(1); w.b.WriteByte(c) }
func (w *writer) rune(c rune)    { w.count(1); w.b.WriteRune(c) }
func (w *writer) String() string { return w.b.String() }
func (w *writer) Len() int       { return w.b.Len() }
