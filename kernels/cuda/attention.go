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
	attentionRows     = 64  // rows of a block with mma.sync, (query, head of the group) pairs or keys
	attentionRowsWide = 128 // of a block with wgmma
	attentionRowsFew  = 16  // of a block that decodes
	attentionThreads  = 128 // of a block of attentionRows
	keyRows           = 64  // keys of a stage
)

// headDims are the widths of heads that attention is compiled for, headDimsWide those for wgmma.
var (
	headDims     = []int{16, 32, 64, 96, 128}
	headDimsWide = []int{64, 128}
)

// attentionTile is Tile of attention.cuh.
type attentionTile struct{ row, from, to, first, last, base, pages, slot int32 }

// attentionMerge is Merge of attention.cu.
type attentionMerge struct{ row, count, slot, splits int32 }

// attentionWork is tiles of one kernel, for each KV head. Where it splits keys, tiles that see several splits have a slot for each, and a merge.
type attentionWork struct {
	rows   int // of a tile
	splits bool
	tiles  []attentionTile
	merges []attentionMerge
	slots  int32
}

// attentionPlan is a call's work as its kernels read it: spans that fit a small tile, and the others.
type attentionPlan struct {
	few, many attentionWork
	pages     []int32
}

// Attention: rule 2 of the definition, stated whole in kernels/cpu/attention.go.
func (d *Device) Attention(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	mustAttend(a, q, kv.K, kv.V, out)
	wide := d.wide(a)
	p := d.attentionPlan(kv, l, a, wide)
	pages := stage(d, p.pages)
	if wide && len(p.many.tiles) > 0 {
		size := 2 * a.HeadDim // of a row of bf16
		d.launch(fmt.Sprintf("attention_wide_%d", a.HeadDim), p.many.grid(a), 256, (attentionRowsWide+4*keyRows)*size+(a.HeadDim/2+4)*256*4,
			out, lse, q, kv.K, kv.V, stage(d, p.many.tiles), pages, a.Heads/a.KVHeads, out.Stride, lse.Stride, q.Stride, kv.K.Stride, kv.V.Stride,
			kv.PageRows, a.Window, d.def.KeySplit, scoreScale(a))
	} else {
		d.attend("attention", &p.many, pages, out, lse, q, kv, a)
	}
	d.attend("attention_few", &p.few, pages, out, lse, q, kv, a)
}

// wide tells whether heads are of a width for which the card has kernels with wgmma.
func (d *Device) wide(a kernels.Attn) bool {
	_, compiled := d.kernels["attention_wide_128"]
	return compiled && slices.Contains(headDimsWide, a.HeadDim)
}

// attend runs work whose splits are blocks of their own.
func (d *Device) attend(kernel string, w *attentionWork, pages cu.DevicePtr, out, lse, q kernels.Tensor, kv kernels.KV, a kernels.Attn) {
	if len(w.tiles) == 0 {
		return
	}
	group, pitch := a.Heads/a.KVHeads, 2*(a.HeadDim+8)
	var partial cu.DevicePtr
	if w.slots > 0 {
		partial = d.workspace(int(w.slots) * a.KVHeads * w.rows * (a.HeadDim + 2) * 4)
	}
	d.launch(fmt.Sprintf("%s_%d", kernel, a.HeadDim), w.grid(a), w.rows*2, (w.rows+4*keyRows)*pitch,
		out, lse, q, kv.K, kv.V, stage(d, w.tiles), pages, partial, group, out.Stride, lse.Stride, q.Stride, kv.K.Stride, kv.V.Stride, kv.PageRows, a.Window, scoreScale(a))
	if w.slots > 0 {
		d.launch("attention_merge", [3]int{len(w.merges), a.KVHeads, 1}, attentionThreads, 0,
			out, lse, stage(d, w.merges), partial, w.rows, group, a.HeadDim, out.Stride, lse.Stride)
	}
}

func scoreScale(a kernels.Attn) float32 { return float32(a.Scale * math.Log2E) }

func (w *attentionWork) grid(a kernels.Attn) [3]int { return [3]int{len(w.tiles), a.KVHeads, 1} }

// attentionPlan cuts spans into tiles of queries. Tiles with most keys come first.
func (d *Device) attentionPlan(kv kernels.KV, l *kernels.Layout, a kernels.Attn, wide bool) *attentionPlan {
	group := a.Heads / a.KVHeads
	p := &attentionPlan{few: attentionWork{rows: attentionRowsFew, splits: true}, many: attentionWork{rows: attentionRows, splits: true}}
	if wide {
		p.many.rows, p.many.splits = attentionRowsWide, false
	}
	for i := range l.Spans {
		s := &l.Spans[i]
		t := attentionTile{base: int32(s.Row), pages: -1}
		if kv.PageRows > 0 {
			t.pages = int32(len(p.pages))
			p.pages = append(p.pages, s.Pages...)
		}
		w := &p.many
		if s.Rows*group <= attentionRowsFew {
			w = &p.few
		}
		n := w.rows / group
		for from := s.Pos; from < s.Pos+s.Rows; from += n {
			t.row, t.from, t.to = int32(s.Row+from-s.Pos), int32(from), int32(min(from+n, s.Pos+s.Rows))
			w.add(t, d.def, a)
		}
	}
	for _, w := range []*attentionWork{&p.few, &p.many} {
		slices.SortStableFunc(w.tiles, func(x, y attentionTile) int { return int((y.last - y.first) - (x.last - x.first)) })
	}
	return p
}

// add adds a tile of queries: one piece of work, or one for each split of its keys.
func (w *attentionWork) add(t attentionTile, def kernels.Definition, a kernels.Attn) {
	block, split := int32(def.KeyBlock), int32(def.KeySplit)
	if a.Window > 0 {
		t.first = max(0, t.from-int32(a.Window)+1) / block * block
	}
	t.last, t.slot = t.to, -1
	count := (t.to-1)/split - t.first/split + 1
	if !w.splits || count == 1 {
		w.tiles = append(w.tiles, t)
		return
	}
	w.merges = append(w.merges, attentionMerge{row: t.row, count: (t.to - t.from) * int32(a.Heads/a.KVHeads), slot: w.slots, splits: count})
	for t.first < t.to {
		t.last, t.slot = min((t.first/split+1)*split, t.to), w.slots
		w.tiles = append(w.tiles, t)
		w.slots++
		t.first = t.last
	}
}

// attentionPart is Part of attention.cuh.
type attentionPart struct{ row, rows, at int32 }

// AttentionBackward is for unpaged layouts; dq, dk, dv are written.
func (d *Device) AttentionBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	mustAttend(a, q, kv.K, kv.V, out, dout, dq, dk, dv)
	rows, group := l.Rows(), a.Heads/a.KVHeads
	kernel, shared := "attention_%s_%d", 4*attentionRows*(a.HeadDim+8)*2
	if d.wide(a) {
		kernel, shared = "attention_%s_wide_%d", 6*attentionRows*a.HeadDim*2+2*2*keyRows*4
	}
	delta := d.workspace(4 * rows * a.Heads)
	d.launch("attention_delta", warps(rows*a.Heads), warpThreads, 0, delta, dout, out, rows, a.Heads, a.HeadDim, dout.Stride, out.Stride)
	queries, keys := attentionParts(l, true), attentionParts(l, false)
	d.launch(fmt.Sprintf(kernel, "dq", a.HeadDim), [3]int{len(queries), a.Heads, 1}, attentionThreads, shared, dq, dout, lse, delta, q, kv.K, kv.V, stage(d, queries), group,
		dq.Stride, dout.Stride, lse.Stride, q.Stride, kv.K.Stride, kv.V.Stride, a.Window, scoreScale(a), float32(a.Scale))
	d.launch(fmt.Sprintf(kernel, "dkv", a.HeadDim), [3]int{len(keys), a.KVHeads, 1}, attentionThreads, shared, dk, dv, dout, lse, delta, q, kv.K, kv.V, stage(d, keys), group,
		dk.Stride, dv.Stride, dout.Stride, lse.Stride, q.Stride, kv.K.Stride, kv.V.Stride, a.Window, scoreScale(a), float32(a.Scale))
}

// attentionParts cuts every span into 64 positions; those with most work come first: late queries, early keys.
func attentionParts(l *kernels.Layout, late bool) (parts []attentionPart) {
	for _, s := range l.Spans {
		for at := 0; at < s.Rows; at += attentionRows {
			parts = append(parts, attentionPart{row: int32(s.Row), rows: int32(s.Rows), at: int32(at)})
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
