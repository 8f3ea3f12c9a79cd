package tokenizer

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
)

const (
	cacheSlots = 1 << 15
	cacheWord  = 64 // bytes of the longest word that is kept
)

// wordCache keeps the tokens of words that were met, in a fixed number of slots: a word displaces the one whose slot it
// hashes to. Any number of goroutines may use it; what they find never depends on what the others do, only how fast.
type wordCache struct {
	seed  maphash.Seed
	slots [cacheSlots]atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

func newWordCache() *wordCache { return &wordCache{seed: maphash.MakeSeed()} }

// lookup finds a word, and the slot to store it in.
func (c *wordCache) lookup(word string) (ids []int32, slot *atomic.Pointer[cachedWord]) {
	slot = &c.slots[maphash.String(c.seed, word)%cacheSlots]
	if found := slot.Load(); found != nil && found.word == word {
		return found.ids, slot
	}
	return nil, slot
}

// newCachedWord copies, so that a kept word does not keep the text it is part of.
func newCachedWord(word string, ids []int32) *cachedWord {
	return &cachedWord{strings.Clone(word), slices.Clone(ids)}
}
