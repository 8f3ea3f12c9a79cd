//go:build cuda

package cuda

import (
	"slices"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// attentionTile is Tile of attention.cuh.
type attentionTile struct{ row, from, to, first, last, base, pages, slot, begin, splits, merge int32 }

// attentionWork is tiles of one kernel, for each KV head. Where it splits keys, a tile that sees several splits is several pieces of work with a slot each, and a merge.
type attentionWork struct {
	rows   int // of a tile
	splits bool
	tiles  []attentionTile
	slots  int32
	merges int32

	tilesAt, doneAt cu.DevicePtr // in the words of the plan, in bytes: tiles, and how many splits are done for each merge and KV head
}

// attentionPlan is a call's work as its kernels read it: spans that fit a small tile, and the others.
type attentionPlan struct {
	few, many attentionWork
	words     []int32 // pages, tiles, counters
}

// attentionPlans keeps the latest plan of each shape: the layers of a forward are one layout's, and to plan 256 sequences takes the host 0.1 ms.
type attentionPlans map[planShape]laidOut

// planShape is what layers of one plan have in common, besides the layout.
type planShape struct {
	attn     kernels.Attn
	pageRows int
	teams    int
}

type laidOut struct {
	layout *kernels.Layout // kept, so that its address is no other's
	plan   *attentionPlan
}

// of is the plan for a layout, which does not change once it is in use.
func (c attentionPlans) of(def kernels.Definition, kv kernels.KV, l *kernels.Layout, a kernels.Attn, teams int) *attentionPlan {
	shape := planShape{a, kv.PageRows, teams}
	if c[shape].layout != l {
		c[shape] = laidOut{l, planAttention(def, kv, l, a, teams)}
	}
	return c[shape].plan
}

// planAttention cuts spans into tiles of queries, for kernels with wgmma by so many warpgroups or (0) without. Tiles with most keys come first.
func planAttention(def kernels.Definition, kv kernels.KV, l *kernels.Layout, a kernels.Attn, teams int) *attentionPlan {
	group := a.Heads / a.KVHeads
	p := &attentionPlan{few: attentionWork{rows: 8, splits: true}, many: attentionWork{rows: attentionRows, splits: true}}
	if teams > 0 {
		p.many.rows, p.many.splits = 64*teams, false
	}
	small := func(s kernels.Span) bool { return s.Rows*group <= attentionRowsFew && !latent(a) }
	for _, s := range l.Spans {
		if pairs := s.Rows * group; small(s) {
			for p.few.rows < pairs {
				p.few.rows *= 2
			}
		}
	}
	for i := range l.Spans {
		s := &l.Spans[i]
		t := attentionTile{base: int32(s.Row), pages: -1}
		if kv.PageRows > 0 {
			t.pages = int32(len(p.words))
			p.words = append(p.words, s.Pages...)
		}
		w := &p.many
		if small(*s) {
			w = &p.few
		}
		n := w.rows / group
		for from := s.Pos; from < s.Pos+s.Rows; from += n {
			t.row, t.from, t.to = int32(s.Row+from-s.Pos), int32(from), int32(min(from+n, s.Pos+s.Rows))
			w.add(t, def, a)
		}
	}
	for _, w := range []*attentionWork{&p.few, &p.many} {
		slices.SortStableFunc(w.tiles, func(x, y attentionTile) int { return int((y.last - y.first) - (x.last - x.first)) })
		w.tilesAt = addWords(p, w.tiles)
		w.doneAt = addWords(p, make([]int32, int(w.merges)*a.KVHeads))
	}
	return p
}

// addWords adds values that consist of int32 and returns where they begin.
func addWords[E any](p *attentionPlan, values []E) cu.DevicePtr {
	at := cu.DevicePtr(4 * len(p.words))
	var e E
	p.words = append(p.words, unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(e))/4)...)
	return at
}

// add adds a tile of queries: one piece of work, or one for each split of its keys.
func (w *attentionWork) add(t attentionTile, def kernels.Definition, a kernels.Attn) {
	block, split := int32(def.KeyBlock), int32(def.KeySplit)
	if a.Window > 0 {
		t.first = max(0, t.from-int32(a.Window)+1) / block * block
	}
	t.last, t.slot = t.to, -1
	t.begin, t.splits, t.merge = w.slots, (t.to-1)/split-t.first/split+1, w.merges
	if !w.splits || t.splits == 1 {
		w.tiles = append(w.tiles, t)
		return
	}
	w.merges++
	for t.first < t.to {
		t.last, t.slot = min((t.first/split+1)*split, t.to), w.slots
		w.tiles = append(w.tiles, t)
		w.slots++
		t.first = t.last
	}
}
