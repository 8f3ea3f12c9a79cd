//go:build cuda

package driver

import (
	"fmt"
	"maps"
	"slices"
)

// What tests and benchmarks look at and set.

// Kernels is the source file of each kernel.
func (c *Context) Kernels() map[string]string {
	files := map[string]string{}
	for name, f := range c.kernels {
		files[name] = f.source
	}
	return files
}

// Variant compiles a source with a macro, as name=value. use replaces kernels by the variant's, until undo.
func (c *Context) Variant(source, macro string) (use func() (undo func()), err error) {
	text, err := c.sources.text(source)
	if err != nil {
		return nil, err
	}
	headers, err := c.sources.includes(text)
	if err != nil {
		return nil, err
	}
	o, err := compile(source, text, slices.Concat(flagsOf(c.arch, c.Def), []string{"--define-macro=" + macro}), headers)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", macro, err)
	}
	var variant map[string]*function
	err = c.Attempt(func() (err error) {
		variant, err = loadModule(o.Code, o.Kernels, MaxShared)
		return err
	})
	return func() func() {
		loaded := c.kernels
		c.kernels = maps.Clone(loaded)
		maps.Copy(c.kernels, variant)
		return func() { c.kernels = loaded }
	}, err
}

// GraphSizes sets how many calls the first graph of a repeated sequence has, and how many the largest, and returns what
// they were.
func (c *Context) GraphSizes(first, most int) (oldFirst, oldMost int) {
	oldFirst, oldMost = c.replay.first, c.replay.most
	c.replay.first, c.replay.most = first, most
	return oldFirst, oldMost
}

// GraphCalls is how many calls each graph has that a repeated sequence ran last.
func (c *Context) GraphCalls(key string) (calls []int) {
	seq := c.replay.sequences[key]
	if seq == nil {
		return nil
	}
	for _, p := range seq.segments {
		if n := len(p.graphs); n > 0 {
			calls = append(calls, len(p.graphs[n-1].calls))
		}
	}
	return calls
}

// Replay enqueues the graphs of a repeated sequence as they are, without its body.
func (c *Context) Replay(key string) {
	for _, p := range c.replay.sequences[key].segments {
		c.Do(p.graphs[len(p.graphs)-1].run)
	}
}

// Forget drops the graphs of a repeated sequence, if there are some.
func (c *Context) Forget(key string) {
	if seq := c.replay.sequences[key]; seq != nil {
		for _, p := range seq.segments {
			c.Do(p.close)
		}
	}
	delete(c.replay.sequences, key)
}
