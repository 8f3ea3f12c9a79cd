//go:build cuda

package attention

import (
	"fmt"
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

const absorbedMasks = 64 // words of a thread of absorbed_masks

// absorbedGradients is one call of the gradient of absorbed attention.
type absorbedGradients struct {
	d                           *Ops
	dq, dk, dv, dout, lse, q, k kernels.Tensor // dq or dk nil: not wanted
	l                           *kernels.Layout
	a                           kernels.Attn
	part                        kernels.KeyPart
	chains                      kernels.Tensor // of keys, between calls; nil: the call has all queries
	lists                       *queryLists
	entries                     cu.DevicePtr // int32 [rows]: of lists that have a part's keys alone; 0: lists are whole
	rows                        int          // of the queries
	delta                       cu.DevicePtr // F32 [rows, Heads]
	masks                       cu.DevicePtr // bits: a key is on a row's list; 0: all keys up to the row's own
}

// gradientsAbsorbed is the gradient of attention for unpaged layouts, dense where indices are nil.
func (d *Ops) gradientsAbsorbed(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, indices kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	g := &absorbedGradients{d: d, dq: dq, dk: dk, dv: dv, dout: dout, lse: lse, q: q, l: l, a: a, part: allKeys(l)}
	g.compute(out, kv, indices, l)
}

// compute enqueues the gradients that are wanted, by queries that lie as a layout says; out nil: delta is there.
func (g *absorbedGradients) compute(out kernels.Tensor, kv kernels.KV, indices kernels.Tensor,
	queries *kernels.Layout) {
	mustShare(kv)
	d, a, width, own := g.d, g.a, 0, 0
	g.k, g.rows = kv.K, queries.Rows()
	g.lists = d.listQueries(kv, indices, queries)
	listed := !indices.IsNil() && !g.dk.IsNil()
	along := listed && d.absorbedWide(a) && g.shortLists()
	if listed && !along {
		width = driver.Blocks(longest(queries), absorbedBackwardPart)
	}
	if !out.IsNil() {
		own = g.rows * a.Heads
	}
	var wide wideGradients
	var lists listedGradients
	switch {
	case along:
		lists = g.planListed()
	case d.absorbedWide(a):
		wide = g.planWide(width > 0)
	}
	parts := d.Floats(slices.Concat([]int{own, g.rows * width}, wide.floats(), lists.floats())...)
	if own > 0 {
		g.delta = parts[0]
		launchAttentionDelta(d.Context, driver.WarpGrid(own), driver.WarpThreads, 0, g.delta, g.dout, out, g.rows,
			a.Heads, a.Values(), g.dout.Stride, out.Stride)
	}
	if width > 0 {
		g.masks = parts[1]
		grid := [3]int{driver.Blocks(g.lists.queries, driver.WarpThreads), driver.Blocks(width, absorbedMasks), 1}
		launchAbsorbedMasks(d.Context, grid, driver.WarpThreads, 0, &g.lists.params, g.masks, g.lists.queries, g.rows)
	}
	switch {
	case along:
		g.listed(&lists, parts[5:])
	case d.absorbedWide(a):
		g.queriesWide(&wide, parts[2])
		g.keysWide(&wide, parts[2:])
	default:
		g.portable()
	}
}

// portable is by mma.sync.
func (g *absorbedGradients) portable() {
	d, a := g.d, g.a
	name, lines, small := fmt.Sprintf("_%d_%d", a.HeadDim, a.Values()), stride64(a.HeadDim), stride64(a.Values())
	shared := 2*(absorbedHeads*(lines+small+64)+2*absorbedBackwardPart*lines) + 4*2*absorbedBackwardPart
	if !g.dq.IsNil() {
		launchAbsorbedDq(d.Context, name, [3]int{g.lists.queries, driver.Blocks(a.Heads, absorbedHeads), 1},
			absorbedThreads, shared, &g.lists.params, g.dq, g.dout, g.lse, g.delta, g.q, g.k, a.Heads, g.dq.Stride,
			g.dout.Stride, g.lse.Stride, g.q.Stride, g.k.Stride, scoreScale(a), float32(a.Scale))
	}
	if g.dk.IsNil() {
		return
	}
	keys := planKeys(g.l, g.part, absorbedBackwardPart, queryBlocks(a.Heads, absorbedBackwardPart).queries)
	shared = 2*absorbedBackwardPart*(3*lines+2*small+2*64) + 4*2*3*absorbedBackwardPart
	for _, p := range keys.passes(1 << 62) {
		tiles := keys.of(p)
		launchAbsorbedDkv(d.Context, name, [3]int{len(tiles), 1, 1}, absorbedThreads, shared, g.dk, g.dv, g.chains,
			g.dout, g.lse, g.delta, g.q, g.k, g.masks, driver.Stage(d.Context, tiles), g.rows, a.Heads, g.dk.Stride,
			g.dv.Stride, g.dout.Stride, g.lse.Stride, g.q.Stride, g.k.Stride, scoreScale(a), float32(a.Scale))
	}
}
