package tokenizer

import "math/bits"

// mergeTable maps pairs of neighbouring tokens to the token that replaces them and to the rank of that merge: a hash
// table with open addressing, at most half full.
type mergeTable struct {
	slots []mergeSlot
	shift int
}

type mergeSlot struct {
	pair uint64
	merge
}

// merge says what a pair becomes; the lower the rank, the earlier.
type merge struct{ rank, id int32 }

const (
	noPair  = ^uint64(0)
	noMerge = int32(1<<31 - 1) // a rank after all others
)

func pairOf(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

func newMergeTable(n int) *mergeTable {
	size := max(3, bits.Len(uint(2*n)))
	t := &mergeTable{slots: make([]mergeSlot, 1<<size), shift: 64 - size}
	for i := range t.slots {
		t.slots[i].pair = noPair
	}
	return t
}

func (t *mergeTable) slot(pair uint64) *mergeSlot {
	mask := uint64(len(t.slots) - 1)
	i := pair * 0x9e3779b97f4a7c15 >> t.shift // Fibonacci hashing
	for {
		s := &t.slots[i&mask]
		if s.pair == pair || s.pair == noPair {
			return s
		}
		i++
	}
}

// put sets a merge; the last of a pair counts.
func (t *mergeTable) put(a, b int32, m merge) {
	pair := pairOf(a, b)
	*t.slot(pair) = mergeSlot{pair, m}
}

// get is the merge of a pair, with rank noMerge if there is none.
func (t *mergeTable) get(a, b int32) merge {
	s := t.slot(pairOf(a, b))
	if s.pair == noPair {
		return merge{rank: noMerge}
	}
	return s.merge
}

// shortWord is the number of symbols up to which looking at all pairs for the lowest rank beats a heap.
const shortWord = 32

// apply merges neighbours in place, lowest rank first, leftmost of equal ranks, until no pair has a merge.
func (t *mergeTable) apply(ids []int32) []int32 {
	if len(ids) > shortWord {
		return t.applyLong(ids)
	}
	var pairs [shortWord]merge // pairs[i] is of ids[i] and ids[i+1]
	for i := range len(ids) - 1 {
		pairs[i] = t.get(ids[i], ids[i+1])
	}
	for n := len(ids) - 1; n > 0; n-- {
		best := 0
		for i, p := range pairs[1:n] {
			if p.rank < pairs[best].rank {
				best = i + 1
			}
		}
		if pairs[best].rank == noMerge {
			break
		}
		ids[best] = pairs[best].id
		copy(ids[best+1:], ids[best+2:])
		ids = ids[:n]
		copy(pairs[best:n-1], pairs[best+1:n])
		if best > 0 {
			pairs[best-1] = t.get(ids[best-1], ids[best])
		}
		if best+1 < n {
			pairs[best] = t.get(ids[best], ids[best+1])
		}
	}
	return ids
}

// symbol is a link of the list of a long word's symbols; id is -1 once it is part of the one to its left.
type symbol struct{ id, prev, next int32 }

// applyLong is apply by a heap of pairs, in n log n. An entry is the rank and the place of a pair; it is out of date if
// the pair at that place has another rank by now.
func (t *mergeTable) applyLong(ids []int32) []int32 {
	list := make([]symbol, len(ids))
	heap := make(keyHeap, 0, 2*len(ids))
	rankAt := func(i int32) merge {
		if i < 0 || list[i].id < 0 || int(list[i].next) == len(list) {
			return merge{rank: noMerge}
		}
		return t.get(list[i].id, list[list[i].next].id)
	}
	push := func(i int32) {
		if m := rankAt(i); m.rank != noMerge {
			heap.push(uint64(m.rank)<<32 | uint64(i))
		}
	}
	for i, id := range ids {
		list[i] = symbol{id, int32(i - 1), int32(i + 1)}
	}
	for i := range ids {
		push(int32(i))
	}
	for len(heap) > 0 {
		key := heap.pop()
		i := int32(uint32(key))
		m := rankAt(i)
		if m.rank != int32(key>>32) {
			continue
		}
		gone := list[i].next
		list[i].id, list[i].next = m.id, list[gone].next
		list[gone].id = -1
		if next := list[i].next; int(next) < len(list) {
			list[next].prev = i
		}
		push(list[i].prev)
		push(i)
	}
	out := ids[:0]
	for _, s := range list {
		if s.id >= 0 {
			out = append(out, s.id)
		}
	}
	return out
}

// keyHeap is a binary heap with the lowest key on top.
type keyHeap []uint64

func (h *keyHeap) push(key uint64) {
	*h = append(*h, key)
	a := *h
	i := len(a) - 1
	for i > 0 && a[(i-1)/2] > key {
		a[i] = a[(i-1)/2]
		i = (i - 1) / 2
	}
	a[i] = key
}

func (h *keyHeap) pop() uint64 {
	a := *h
	top, key := a[0], a[len(a)-1]
	a = a[:len(a)-1]
	*h = a
	i := 0
	for {
		child := 2*i + 1
		if child+1 < len(a) && a[child+1] < a[child] {
			child++
		}
		if child >= len(a) || a[child] >= key {
			break
		}
		a[i] = a[child]
		i = child
	}
	if len(a) > 0 {
		a[i] = key
	}
	return top
}
