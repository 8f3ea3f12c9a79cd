package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

// naiveMerges is the definition: again and again, the leftmost pair of the lowest rank.
func naiveMerges(t *mergeTable, ids []int32) []int32 {
	for {
		best, at := merge{rank: noMerge}, 0
		for i := range len(ids) - 1 {
			if m := t.get(ids[i], ids[i+1]); m.rank < best.rank {
				best, at = m, i
			}
		}
		if best.rank == noMerge {
			return ids
		}
		ids = slices.Concat(ids[:at], []int32{best.id}, ids[at+2:])
	}
}

// randomMerges is a table in which later tokens are made of earlier ones.
func randomMerges(r *rand.Rand, n int) *mergeTable {
	t := newMergeTable(n)
	for rank := range n {
		t.put(r.Int32N(int32(4+rank)), r.Int32N(int32(4+rank)), merge{int32(rank), int32(4 + rank)})
	}
	return t
}

func TestMergeOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	merged := 0
	for range 3000 {
		table := randomMerges(r, 1+r.IntN(40))
		ids := make([]int32, r.IntN(2*shortWord))
		for i := range ids {
			ids[i] = r.Int32N(4)
		}
		want := naiveMerges(table, slices.Clone(ids))
		merged += len(ids) - len(want)
		if got := table.apply(slices.Clone(ids)); !slices.Equal(got, want) {
			t.Fatalf("%v: %v, want %v", ids, got, want)
		}
		if got := table.applyLong(slices.Clone(ids)); !slices.Equal(got, want) {
			t.Fatalf("long way of %v: %v, want %v", ids, got, want)
		}
	}
	if merged < 3000 {
		t.Errorf("only %d merges", merged)
	}
}

func TestMergeTableIsExact(t *testing.T) {
	const n = 5000
	table := newMergeTable(n)
	for i := range int32(n) {
		table.put(i, i*7%n, merge{i, i + 1})
	}
	table.put(3, 21, merge{n, 9}) // the last of a pair counts
	for i := range int32(n) {
		want := merge{i, i + 1}
		if i == 3 {
			want = merge{n, 9}
		}
		if got := table.get(i, i*7%n); got != want {
			t.Fatalf("pair %d: %v, want %v", i, got, want)
		}
		if got := table.get(i, i*7%n+n); got.rank != noMerge {
			t.Fatalf("pair %d that is not there: %v", i, got)
		}
	}
}

// A word of a megabyte takes n log n steps; n^2 would take hours.
func TestLongWord(t *testing.T) {
	tok := loadTokenizer(t, "qwen3")
	text := strings.Repeat("international", 1<<20/13)
	if got := tok.Decode(tok.Encode(text)); got != text {
		t.Error("a long word came back changed")
	}
}

// Goroutines that share a tokenizer, and so its cache, get what one alone gets.
func TestEncodeFromManyGoroutines(t *testing.T) {
	cases := loadCases(t, "testdata/qwen3/cases.jsonl")
	tok := loadTokenizer(t, "qwen3")
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range cases {
				c := cases[(i*(2*g+1))%len(cases)]
				if ids := tok.Encode(c.Text); !slices.Equal(ids, c.IDs) {
					t.Errorf("%q: %v, want %v", c.Text, ids, c.IDs)
				}
			}
		})
	}
	wg.Wait()
}

// Words that fall into one slot displace each other and are never mistaken for each other.
func TestCacheCollisions(t *testing.T) {
	c := newWordCache()
	for i := range 4 * cacheSlots {
		word := string(rune('a'+i%26)) + strings.Repeat("x", i%7) + string(rune(0x4e00+i%20000))
		ids, slot := c.lookup(word)
		if ids == nil {
			slot.Store(newCachedWord(word, []int32{int32(len(word)), word2int(word)}))
		} else if ids[1] != word2int(word) {
			t.Fatalf("%q has the tokens of another word", word)
		}
	}
}

func word2int(word string) (n int32) {
	for _, r := range word {
		n = n*31 + r
	}
	return n
}
