//go:build cuda

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

const (
	absorbedPart  = 32 // keys of a block of dk and dv, and entries of a step
	absorbedMasks = 64 // words of a thread of absorbed_masks
)

// gradientsAbsorbed is the gradient of attention for unpaged layouts, dense where picks are nil; a bit for each row and key then says what is on its list.
func (d *Device) gradientsAbsorbed(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, picks kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	mustShare(kv)
	rows, width := l.Rows(), 0
	if !picks.IsNil() {
		width = blocks(longest(l), absorbedPart)
	}
	lists, parts := d.listQueries(kv, picks, l), d.floats(rows*a.Heads, rows*width)
	delta, masks := parts[0], parts[1]
	d.launch("attention_delta", warps(rows*a.Heads), warpThreads, 0, delta, dout, out, rows, a.Heads, a.Values(), dout.Stride, out.Stride)
	name, lines, small := fmt.Sprintf("_%d_%d", a.HeadDim, a.Values()), stride64(a.HeadDim), stride64(a.Values())
	shared := 2*(absorbedHeads*(lines+small+64)+2*absorbedPart*lines) + 4*2*absorbedPart
	d.launch("absorbed_dq"+name, [3]int{lists.queries, blocks(a.Heads, absorbedHeads), 1}, absorbedThreads, shared, lists.params, dq, dout, lse, delta, q, kv.K, a.Heads,
		dq.Stride, dout.Stride, lse.Stride, q.Stride, kv.K.Stride, scoreScale(a), float32(a.Scale))
	if picks.IsNil() {
		masks = cu.DevicePtr(0)
	} else {
		d.launch("absorbed_masks", [3]int{blocks(lists.queries, warpThreads), blocks(width, absorbedMasks), 1}, warpThreads, 0, lists.params, masks, lists.queries, rows)
	}
	keys := attentionParts(l, absorbedPart, false)
	shared = 2*absorbedPart*(3*lines+2*small+2*64) + 4*2*3*absorbedPart
	d.launch("absorbed_dkv"+name, [3]int{len(keys), 1, 1}, absorbedThreads, shared, dk, dv, dout, lse, delta, q, kv.K, masks, stage(d, keys), rows, a.Heads,
		dk.Stride, dv.Stride, dout.Stride, lse.Stride, q.Stride, kv.K.Stride, scoreScale(a), float32(a.Scale))
}
