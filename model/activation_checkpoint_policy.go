package model

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// candidate is a result of a block that may be kept: the bytes that it takes and the FLOPs that it saves.
type candidate struct {
	block int
	save  Save
	bytes int
	flops float64
}

// candidates are the results of all blocks, most FLOPs for a byte first, and then the rest of each block. Of equal ones
// that of a later block comes first: its memory is free again before an earlier block needs any.
func (m *Model) candidates(e Extent) (all []candidate) {
	for i := len(m.Blocks) - 1; i >= 0; i-- {
		for _, res := range m.Blocks[i].work(m.DType, m.Hidden, e).results {
			at := slices.IndexFunc(all, func(c candidate) bool { return c.block == i && c.save == res.save })
			if at < 0 {
				at, all = len(all), append(all, candidate{block: i, save: res.save})
			}
			all[at].bytes += res.bytes()
			all[at].flops += res.flops
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Compare(b.flops*float64(a.bytes), a.flops*float64(b.bytes))
	})
	for i := len(m.Blocks) - 1; i >= 0; i-- {
		all = append(all, candidate{block: i, save: SaveAll})
	}
	return all
}

// alike tells whether two candidates differ by their blocks alone. The rest of a block is like no other: it depends on
// what is kept of the block.
func (c candidate) alike(d candidate) bool {
	return c.save != SaveAll && c.save == d.save && c.bytes == d.bytes && c.flops == d.flops
}

// Recompute is the policy for batches of this extent: greedily, it keeps the results with most FLOPs for a byte, as
// long as peak, the bytes that a policy takes, is within available. It depends on its arguments alone. No bit of a
// result depends on it.
func (m *Model) Recompute(e Extent, available int, peak func(Policy) int) Policy {
	if peak(nil) <= available {
		return nil
	}
	p := m.Everywhere(0)
	for order := m.candidates(e); len(order) > 0; {
		n := 1
		for n < len(order) && order[n].alike(order[0]) {
			n++
		}
		fit := sort.Search(n, func(i int) bool { return peak(p.with(order[:i+1])) > available })
		p, order = p.with(order[:fit]), order[n:]
	}
	return p
}

// with is p and some candidates.
func (p Policy) with(more []candidate) Policy {
	p = slices.Clone(p)
	for _, c := range more {
		if p[c.block] |= c.save; c.save == SaveAll {
			p[c.block] = SaveAll
		}
	}
	return p
}

// savedNames are the names of results in a summary.
var savedNames = []struct {
	save Save
	name string
}{
	{SaveAll, "everything"}, {SaveAttention, "attention"}, {SaveExperts, "experts"},
	{SaveGateUp, "gate and up projections"}, {SaveResidual, "residual sums"}, {SaveProjections, "projections"},
}

// Summary says what the policy keeps and how much of a forward the backward pass computes again, in FLOPs of the
// blocks.
func (m *Model) Summary(p Policy, e Extent) string {
	if p == nil {
		return "everything kept, nothing computed again"
	}
	var parts []string
	for _, k := range savedNames {
		n := 0
		for i := range m.Blocks {
			if p.of(i)&k.save != 0 {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s of %d", k.name, n))
		}
	}
	if parts == nil {
		parts = []string{"nothing"}
	}
	last := len(parts) - 1
	what := strings.Join(parts[:last], ", ")
	if last > 0 {
		what += " and "
	}
	again, all := m.again(p, e)
	return fmt.Sprintf("%s%s of %d blocks kept, %.0f%% of forward computed again", what, parts[last], len(m.Blocks),
		100*again/max(all, 1))
}

// again is the FLOPs of the blocks that the backward pass repeats, and those of one forward.
func (m *Model) again(p Policy, e Extent) (again, all float64) {
	for i, bl := range m.Blocks {
		w := bl.work(m.DType, m.Hidden, e)
		all += w.output + w.again + w.once
		left := w.again
		for _, res := range w.results {
			all += res.flops
			if p.of(i)&res.save == 0 {
				left += res.flops
			}
		}
		if p.of(i) != SaveAll {
			again += left
		}
	}
	return again, all
}
