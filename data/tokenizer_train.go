package data

import (
	"cmp"
	"container/heap"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// TrainBPE learns a byte-level vocabulary of the given size, special tokens included, which come last. It merges the
// pair of neighbours that is most frequent in the words of the texts, and again, until the size is reached; of equally
// frequent pairs the one of lower ids. The result depends on the words and their counts alone, not on the order of the
// texts. Text that looks like a special token is text here.
func TrainBPE(texts iter.Seq[string], vocab int, special []string) (*Tokenizer, error) {
	if vocab < 256+len(special) {
		return nil, fmt.Errorf("vocabulary of %d: want at least %d, for 256 bytes and %d special tokens", vocab,
			256+len(special), len(special))
	}
	tr := newTrainer(texts)
	for len(tr.tokens)+len(special) < vocab {
		if !tr.step() {
			return nil, fmt.Errorf("vocabulary of %d: the texts have pairs for %d only: ask for less or give more text",
				vocab, len(tr.tokens)+len(special))
		}
	}
	return NewBPE(BPE{Merges: tr.merges, Special: special})
}

// trainer holds the distinct words, each as its tokens of the moment, and how often each pair of neighbours occurs.
type trainer struct {
	words  []trainWord
	count  map[uint64]int
	where  map[uint64][]int // words that may hold the pair
	queue  pairQueue
	tokens []string // the bytes of each token
	ids    map[string]int32
	merges [][2]string
}

type trainWord struct {
	ids   []int32
	count int
}

func newTrainer(texts iter.Seq[string]) *trainer {
	tr := &trainer{count: map[uint64]int{}, where: map[uint64][]int{}, ids: map[string]int32{}}
	for b := range 256 {
		tr.id(string([]byte{byte(b)}))
	}
	counts := countWords(texts)
	for i, word := range slices.Sorted(maps.Keys(counts)) {
		w := trainWord{count: counts[word]}
		for _, b := range []byte(word) {
			w.ids = append(w.ids, int32(b))
		}
		tr.words = append(tr.words, w)
		tr.add(w, 1)
		for pair := range w.pairs() {
			tr.where[pair] = append(tr.where[pair], i)
		}
	}
	for pair, n := range tr.count {
		heap.Push(&tr.queue, pairCount{pair, n})
	}
	return tr
}

// countWords counts the words of texts as Encode would cut them.
func countWords(texts iter.Seq[string]) map[string]int {
	counts := map[string]int{}
	words := &preTokenizer{patterns: []pattern{patterns[qwen2Regex]}, spaceStep: -1}
	for text := range texts {
		words.each(nfc(strings.ToValidUTF8(text, "\ufffd")), func(word string) {
			if _, known := counts[word]; !known {
				word = strings.Clone(word) // keep the word, not its text
			}
			counts[word]++
		})
	}
	return counts
}

// pairs lists neighbours, each occurrence.
func (w trainWord) pairs() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for i := range len(w.ids) - 1 {
			if !yield(pairOf(w.ids[i], w.ids[i+1])) {
				return
			}
		}
	}
}

// add counts the pairs of a word in (sign 1) or out (sign -1).
func (tr *trainer) add(w trainWord, sign int) {
	for pair := range w.pairs() {
		tr.count[pair] += sign * w.count
	}
}

// id is the token of some bytes, a new one if need be.
func (tr *trainer) id(bytes string) int32 {
	id, ok := tr.ids[bytes]
	if !ok {
		id = int32(len(tr.tokens))
		tr.ids[bytes] = id
		tr.tokens = append(tr.tokens, bytes)
	}
	return id
}

// step merges the best pair, into a new token or into one that another pair made. It reports false if no pair occurs
// twice.
func (tr *trainer) step() bool {
	pair, ok := tr.best()
	if !ok {
		return false
	}
	a, b := int32(pair>>32), int32(uint32(pair))
	tr.merges = append(tr.merges, [2]string{tr.tokens[a], tr.tokens[b]})
	id := tr.id(tr.tokens[a] + tr.tokens[b])
	grown := map[uint64]bool{} // pairs that have the token
	for _, i := range tr.where[pair] {
		w := &tr.words[i]
		before := len(w.ids)
		tr.add(*w, -1)
		w.ids = replacePair(w.ids, a, b, id)
		tr.add(*w, 1)
		if len(w.ids) == before {
			continue // listed twice
		}
		for p := range w.pairs() {
			if int32(p>>32) == id || int32(uint32(p)) == id {
				tr.where[p] = append(tr.where[p], i)
				grown[p] = true
			}
		}
	}
	delete(tr.where, pair)
	for p := range grown {
		heap.Push(&tr.queue, pairCount{p, tr.count[p]})
	}
	return true
}

// best takes the most frequent pair from the queue. A count that grows is entered again, so an entry that differs from
// the count of now was too high, and goes back with that.
func (tr *trainer) best() (uint64, bool) {
	for len(tr.queue) > 0 {
		top := tr.queue[0]
		if n := tr.count[top.pair]; n != top.count {
			tr.queue[0].count = n
			heap.Fix(&tr.queue, 0)
			continue
		}
		if top.count < 2 {
			return 0, false
		}
		heap.Pop(&tr.queue)
		return top.pair, true
	}
	return 0, false
}

// replacePair writes id for each a, b from the left, in place.
func replacePair(ids []int32, a, b, id int32) []int32 {
	out := ids[:0]
	for i := 0; i < len(ids); i++ {
		if ids[i] == a && i+1 < len(ids) && ids[i+1] == b {
			out = append(out, id)
			i++
		} else {
			out = append(out, ids[i])
		}
	}
	return out
}

type pairCount struct {
	pair  uint64
	count int
}

// pairQueue is a heap with the most frequent pair on top, of equal ones the one of lower ids.
type pairQueue []pairCount

func (q pairQueue) Len() int { return len(q) }
func (q pairQueue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[j].count, q[i].count), cmp.Compare(q[i].pair, q[j].pair)) < 0
}
func (q pairQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *pairQueue) Push(x any)   { *q = append(*q, x.(pairCount)) }
func (q *pairQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
