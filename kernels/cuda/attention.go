//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

const (
	attentionRows    = 64 // of a block: (query, head of the group) pairs, or keys
	attentionThreads = 128
)

// headDims are the widths of heads that attention is compiled for.
var headDims = []int{16, 32, 64, 96, 128}

// attentionTile is Tile of attention.cu.
type attentionTile struct{ row, from, to, kvHead, first, last, base, pages, slot int32 }

// attentionMerge is Merge of attention.cu.
type attentionMerge struct{ row, count, kvHead, slot, splits int32 }

// attentionPlan is a call's work as its kernels read it.
type attentionPlan struct {
	tiles  []attentionTile
	merges []attentionMerge
	pages  []int32
	slots  int32
}

// Attention: rule 2 of the definition, stated whole in kernels/cpu/attention.go.
func (d *Device) Attention(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	mustAttend(a, q, kv.K, kv.V, out)
	p := d.attentionPlan(kv, l, a)
	group := a.Heads / a.KVHeads
	var partial cu.DevicePtr
	if p.slots > 0 {
		partial = d.workspace(int(p.slots) * attentionRows * (a.HeadDim + 2) * 4)
	}
	d.launch(fmt.Sprintf("attention_%d", a.HeadDim), [3]int{len(p.tiles), 1, 1}, attentionThreads, 5*attentionRows*(a.HeadDim+8)*2,
		out, lse, q, kv.K, kv.V, stage(d, p.tiles), stage(d, p.pages), partial, group, a.Heads, out.Stride, lse.Stride, q.Stride, kv.K.Stride, kv.V.Stride,
		kv.PageRows, a.Window, scoreScale(a))
	if p.slots > 0 {
		d.launch("attention_merge", [3]int{len(p.merges), 1, 1}, attentionThreads, 0, out, lse, stage(d, p.merges), partial, group, a.HeadDim, out.Stride, lse.Stride)
	}
}

func scoreScale(a kernels.Attn) float32 { return float32(a.Scale * math.Log2E) }

// attentionPlan cuts spans into tiles of queries, and their keys at splits. Long tiles come first.
func (d *Device) attentionPlan(kv kernels.KV, l *kernels.Layout, a kernels.Attn) *attentionPlan {
	p := &attentionPlan{}
	n := attentionRows / (a.Heads / a.KVHeads)
	for i := range l.Spans {
		s := &l.Spans[i]
		base, pages := int32(s.Row), int32(-1)
		if kv.PageRows > 0 {
			pages = int32(len(p.pages))
			p.pages = append(p.pages, s.Pages...)
		}
		for from := s.Pos; from < s.Pos+s.Rows; from += n {
			to := min(from+n, s.Pos+s.Rows)
			for h := range a.KVHeads {
				p.tile(attentionTile{row: int32(s.Row + from - s.Pos), from: int32(from), to: int32(to), kvHead: int32(h), base: base, pages: pages}, d.def, a)
			}
		}
	}
	slices.SortStableFunc(p.tiles, func(x, y attentionTile) int { return int((y.last - y.first) - (x.last - x.first)) })
	return p
}

// tile adds a tile of queries: one piece of work for each split of its keys.
func (p *attentionPlan) tile(t attentionTile, def kernels.Definition, a kernels.Attn) {
	block, split := int32(def.KeyBlock), int32(def.KeySplit)
	first := int32(0)
	if a.Window > 0 {
		first = max(0, t.from-int32(a.Window)+1) / block * block
	}
	count := (t.to-1)/split - first/split + 1
	if count > 1 {
		p.merges = append(p.merges, attentionMerge{row: t.row, count: (t.to - t.from) * int32(a.Heads/a.KVHeads), kvHead: t.kvHead, slot: p.slots, splits: count})
	}
	for x := first; x < t.to; {
		t.first, t.last, t.slot = x, min((x/split+1)*split, t.to), -1
		if count > 1 {
			t.slot = p.slots
			p.slots++
		}
		p.tiles = append(p.tiles, t)
		x = t.last
	}
}

// attentionPart is Part of attention_backward.cu.
type attentionPart struct{ row, rows, at, head int32 }

// AttentionBackward is for unpaged layouts; dq, dk, dv are written.
func (d *Device) AttentionBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	mustAttend(a, q, kv.K, kv.V, out, dout, dq, dk, dv)
	rows, group, shared := l.Rows(), a.Heads/a.KVHeads, 4*attentionRows*(a.HeadDim+8)*2
	delta := d.workspace(4 * rows * a.Heads)
	d.launch("attention_delta", warps(rows*a.Heads), warpThreads, 0, delta, dout, out, rows, a.Heads, a.HeadDim, dout.Stride, out.Stride)
	queries, keys := attentionParts(l, a.Heads, true), attentionParts(l, a.KVHeads, false)
	d.launch(fmt.Sprintf("attention_dq_%d", a.HeadDim), [3]int{len(queries), 1, 1}, attentionThreads, shared, dq, dout, lse, delta, q, kv.K, kv.V, stage(d, queries), group,
		a.Heads, dq.Stride, dout.Stride, lse.Stride, q.Stride, kv.K.Stride, kv.V.Stride, a.Window, scoreScale(a), float32(a.Scale))
	d.launch(fmt.Sprintf("attention_dkv_%d", a.HeadDim), [3]int{len(keys), 1, 1}, attentionThreads, shared, dk, dv, dout, lse, delta, q, kv.K, kv.V, stage(d, keys), group,
		a.Heads, dk.Stride, dv.Stride, dout.Stride, lse.Stride, q.Stride, kv.K.Stride, kv.V.Stride, a.Window, scoreScale(a), float32(a.Scale))
}

// attentionParts cuts every head of every span into 64 positions; those with most work come first: late queries, early keys.
func attentionParts(l *kernels.Layout, heads int, late bool) (parts []attentionPart) {
	for _, s := range l.Spans {
		for at := 0; at < s.Rows; at += attentionRows {
			for h := range heads {
				parts = append(parts, attentionPart{row: int32(s.Row), rows: int32(s.Rows), at: int32(at), head: int32(h)})
			}
		}
	}
	work := func(p attentionPart) int {
		if late {
			return int(p.at)
		}
		return int(p.rows - p.at)
	}
	slices.SortStableFunc(parts, func(x, y attentionPart) int { return work(y) - work(x) })
	return parts
}

// StoreKV writes rows k, v [T, KVHeads*HeadDim] to the pages of their spans.
func (d *Device) StoreKV(cache kernels.KV, k, v kernels.Tensor, l *kernels.Layout) {
	mustBF16(cache.K, cache.V, k, v)
	to := make([]int32, l.Rows())
	for _, s := range l.Spans {
		for i := range s.Rows {
			pos := s.Pos + i
			to[s.Row+i] = s.Pages[pos/cache.PageRows]*int32(cache.PageRows) + int32(pos%cache.PageRows)
		}
	}
	d.launch("store_kv", warps(len(to)), warpThreads, 0, cache.K, cache.V, k, v, stage(d, to), len(to), k.Cols, cache.K.Stride, cache.V.Stride, k.Stride, v.Stride)
}

// mustAttend panics with what the kernels cannot do.
func mustAttend(a kernels.Attn, ts ...kernels.Tensor) {
	mustBF16(ts...)
	bad := !slices.Contains(headDims, a.HeadDim)
	for _, t := range ts {
		bad = bad || !vectors(t)
	}
	if bad || a.Heads%a.KVHeads != 0 || a.Heads/a.KVHeads > attentionRows {
		panic(kernels.Fault{Err: fmt.Errorf("attention on the GPU is written for heads of %v and up to %d queries a key, not %+v on %v", headDims, attentionRows, a, ts)})
	}
}
