//go:build cuda

package attention

import (
	"math"
	"slices"
	"unsafe"

	"lockstep/kernels"
)

// attentionWork is tiles of one kernel, for each KV head. Where it splits keys, a tile that sees several splits is
// several pieces of work with a slot each, and a merge. Calls follow each other and use the same slots: those of all
// tiles would grow with the square of a sequence.
type attentionWork struct {
	rows      int // of a tile
	splits    bool
	calls     []attentionCall
	mostSlots int32 // of a call, unless one tile has more
	slots     int32 // of the call that has most
	merges    int32
	doneAt    int // in the words of the plan: how many splits are done for each merge and KV head
}

// attentionCall is tiles of one launch.
type attentionCall struct {
	tiles   []attentionTile
	slots   int32
	tilesAt int // in the words of the plan

	// of pages in codes that kernels read as numbers: what becomes rows of numbers, and how many
	pieces   []kvcodesExpanded
	piecesAt int
	expanded int
}

// attentionPlan is a call's work as its kernels read it: spans of few rows, and the others.
type attentionPlan struct {
	few, many attentionWork
	words     []int32 // pages, tiles, counters
}

// latest keeps what was last made of a layout for each of some shapes: the layers of a forward have one layout, and to
// plan 256 sequences takes the host 0.1 ms.
type latest[S comparable, P any] map[S]madeOf[P]

// madeOf is what was made of a layout, for calls with so much room for intermediate results.
type madeOf[P any] struct {
	layout *kernels.Layout // kept, so that its address is no other's
	room   int
	plan   P
}

// of is what make makes of a layout, which does not change once it is in use.
func (c latest[S, P]) of(shape S, l *kernels.Layout, room int, make func() P) P {
	if was := c[shape]; was.layout != l || was.room != room {
		c[shape] = madeOf[P]{l, room, make()}
	}
	return c[shape].plan
}

// attentionPlans are the plans of dense attention.
type attentionPlans struct {
	latest[planShape, *attentionPlan]
}

// planShape is what layers of one plan have in common, besides the layout.
type planShape struct {
	attn     kernels.Attn
	pageRows int
	teams    int
	codes    bool
}

// of is the plan for a layout.
func (c attentionPlans) of(def kernels.Definition, kv kernels.KV, l *kernels.Layout, a kernels.Attn, teams,
	room int) *attentionPlan {
	return c.latest.of(planShape{a, kv.PageRows, teams, kv.Codes != nil}, l, room, func() *attentionPlan {
		return planAttention(def, kv, l, a, teams, room)
	})
}

// planAttention cuts spans into tiles of queries, for kernels with wgmma by so many warpgroups or (0) without, and
// those into calls whose partial results take `room` bytes, about. Tiles with most keys come first in a call.
func planAttention(def kernels.Definition, kv kernels.KV, l *kernels.Layout, a kernels.Attn, teams,
	room int) *attentionPlan {
	group := a.Heads / a.KVHeads
	p := &attentionPlan{few: attentionWork{rows: 8, splits: true}, many: attentionWork{rows: attentionRows,
		splits: true}}
	if teams > 0 {
		p.many.rows, p.many.splits = 64*teams, false
	}
	if fewPortable(kv, a) {
		p.few.rows = attentionRows
	}
	small := func(s kernels.Span) bool { return s.Rows*group <= attentionRowsFew && (teams > 0 || !Latent(a)) }
	for _, s := range l.Spans {
		if pairs := s.Rows * group; small(s) {
			for p.few.rows < pairs {
				p.few.rows *= 2
			}
		}
	}
	for _, w := range []*attentionWork{&p.few, &p.many} {
		w.mostSlots = int32(min(room/w.slotBytes(a), math.MaxInt32))
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
		if kv.Codes != nil && w == &p.many && teams > 0 {
			t.base, t.pages = w.expand(s, t.pages, def, a, room), -1
		}
		n := w.rows / group
		for from := s.Pos; from < s.Pos+s.Rows; from += n {
			t.row, t.from, t.to = int32(s.Row+from-s.Pos), int32(from), int32(min(from+n, s.Pos+s.Rows))
			w.add(t, def, a)
		}
	}
	for _, w := range []*attentionWork{&p.few, &p.many} {
		for i := range w.calls {
			c := &w.calls[i]
			slices.SortStableFunc(c.tiles, func(x, y attentionTile) int {
				return int((y.last - y.first) - (x.last - x.first))
			})
			c.tilesAt, c.piecesAt = addWords(p, c.tiles), addWords(p, c.pieces)
		}
		w.doneAt = addWords(p, make([]int32, int(w.merges)*a.KVHeads))
	}
	return p
}

// addWords adds values that consist of int32 and returns where they begin.
func addWords[E any](p *attentionPlan, values []E) int {
	at := len(p.words)
	var e E
	p.words = append(p.words, unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(values))),
		len(values)*int(unsafe.Sizeof(e))/4)...)
	return at
}

// expand gives the keys that a span sees rows of numbers, in the last call or, where those of one KV head would take
// more than the room, in a new one, and says which would be that of position 0.
func (w *attentionWork) expand(s *kernels.Span, pages int32, def kernels.Definition, a kernels.Attn,
	room int) (base int32) {
	from, to := 0, s.Pos+s.Rows
	if a.Window > 0 {
		from = max(0, s.Pos-a.Window+1) / def.KeyBlock * def.KeyBlock
	}
	n := len(w.calls)
	if n == 0 || w.calls[n-1].expanded > 0 && (w.calls[n-1].expanded+to-from)*expandedBytes(a) > room {
		w.calls = append(w.calls, attentionCall{})
		n++
	}
	c := &w.calls[n-1]
	base = int32(c.expanded - from)
	for at := from; at < to; at += keyRows {
		c.pieces = append(c.pieces, kvcodesExpanded{to: base + int32(at), pages: pages, first: int32(at),
			count: int32(min(keyRows, to-at))})
	}
	c.expanded += to - from
	return base
}

// add adds a tile of queries: one piece of work, or one for each split of its keys.
func (w *attentionWork) add(t attentionTile, def kernels.Definition, a kernels.Attn) {
	block, split := int32(def.KeyBlock), int32(def.KeySplit)
	if a.Window > 0 {
		t.first = max(0, t.from-int32(a.Window)+1) / block * block
	}
	t.last, t.slot, t.splits = t.to, -1, (t.to-1)/split-t.first/split+1
	if !w.splits || t.splits == 1 {
		c := w.callFor(0)
		c.tiles = append(c.tiles, t)
		return
	}
	c := w.callFor(t.splits)
	t.begin, t.merge = c.slots, w.merges
	w.merges++
	for t.first < t.to {
		t.last, t.slot = min((t.first/split+1)*split, t.to), c.slots
		c.tiles = append(c.tiles, t)
		c.slots++
		t.first = t.last
	}
	w.slots = max(w.slots, c.slots)
}

// callFor is the call that takes a tile with so many slots: the last one, or a new one.
func (w *attentionWork) callFor(slots int32) *attentionCall {
	n := len(w.calls)
	if n == 0 || slots > 0 && w.calls[n-1].slots > 0 && w.calls[n-1].slots+slots > w.mostSlots {
		w.calls = append(w.calls, attentionCall{})
		n++
	}
	return &w.calls[n-1]
}

// slotBytes is the size of a slot for all KV heads: for each row its values, maximum and sum.
func (w *attentionWork) slotBytes(a kernels.Attn) int {
	return 4 * a.KVHeads * w.rows * (a.Values() + 2)
}
