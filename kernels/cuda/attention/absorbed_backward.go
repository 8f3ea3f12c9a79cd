//go:build cuda

package attention

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

const absorbedMasks = 64 // words of a thread of absorbed_masks

// absorbedGradients is one call of the gradient of absorbed attention.
type absorbedGradients struct {
	d                           *Ops
	dq, dk, dv, dout, lse, q, k kernels.Tensor
	l                           *kernels.Layout
	a                           kernels.Attn
	lists                       *queryLists
	rows                        int
	delta                       cu.DevicePtr // F32 [rows, Heads]
	masks                       cu.DevicePtr // bits: a key is on a row's list; 0: all keys up to the row's own
}

// gradientsAbsorbed is the gradient of attention for unpaged layouts, dense where indices are nil.
func (d *Ops) gradientsAbsorbed(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, indices kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	mustShare(kv)
	g := &absorbedGradients{d: d, dq: dq, dk: dk, dv: dv, dout: dout, lse: lse, q: q, k: kv.K, l: l, a: a,
		rows: l.Rows()}
	g.lists = d.listQueries(kv, indices, l)
	width := 0
	if !indices.IsNil() {
		width = driver.Blocks(longest(l), absorbedBackwardPart)
	}
	var wide wideGradients
	if d.absorbedWide(a) {
		wide = g.planWide(width > 0)
	}
	parts := d.Floats(append([]int{g.rows * a.Heads, g.rows * width}, wide.floats()...)...)
	g.delta = parts[0]
	launchAttentionDelta(d.Context, driver.WarpGrid(g.rows*a.Heads), driver.WarpThreads, 0, g.delta, dout, out, g.rows,
		a.Heads, a.Values(), dout.Stride, out.Stride)
	if width > 0 {
		g.masks = parts[1]
		grid := [3]int{driver.Blocks(g.lists.queries, driver.WarpThreads), driver.Blocks(width, absorbedMasks), 1}
		launchAbsorbedMasks(d.Context, grid, driver.WarpThreads, 0, &g.lists.params, g.masks, g.lists.queries, g.rows)
	}
	if d.absorbedWide(a) {
		g.wide(&wide, parts[2:])
	} else {
		g.portable()
	}
}

// portable is by mma.sync.
func (g *absorbedGradients) portable() {
	d, a := g.d, g.a
	name, lines, small := fmt.Sprintf("_%d_%d", a.HeadDim, a.Values()), stride64(a.HeadDim), stride64(a.Values())
	shared := 2*(absorbedHeads*(lines+small+64)+2*absorbedBackwardPart*lines) + 4*2*absorbedBackwardPart
	launchAbsorbedDq(d.Context, name, [3]int{g.lists.queries, driver.Blocks(a.Heads, absorbedHeads), 1},
		absorbedThreads, shared, &g.lists.params, g.dq, g.dout, g.lse, g.delta, g.q, g.k, a.Heads, g.dq.Stride,
		g.dout.Stride, g.lse.Stride, g.q.Stride, g.k.Stride, scoreScale(a), float32(a.Scale))
	keys := attentionParts(g.l, absorbedBackwardPart, false)
	shared = 2*absorbedBackwardPart*(3*lines+2*small+2*64) + 4*2*3*absorbedBackwardPart
	launchAbsorbedDkv(d.Context, name, [3]int{len(keys), 1, 1}, absorbedThreads, shared, g.dk, g.dv, g.dout, g.lse,
		g.delta, g.q, g.k, g.masks, driver.Stage(d.Context, keys), g.rows, a.Heads, g.dk.Stride, g.dv.Stride,
		g.dout.Stride, g.lse.Stride, g.q.Stride, g.k.Stride, scoreScale(a), float32(a.Scale))
}
