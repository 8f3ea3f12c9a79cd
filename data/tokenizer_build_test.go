package data

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestByteTokenizer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	if err := ByteTokenizer([]string{"<|end|>", "<é>"}).Save(path); err != nil {
		t.Fatal(err)
	}
	tok, err := LoadTokenizer(path)
	if err != nil {
		t.Fatal(err)
	}
	if ids := tok.Encode("aé<|end|>"); tok.Vocab() != 258 || !slices.Equal(ids, []int32{'a', 0xc3, 0xa9, 256}) {
		t.Errorf("vocab %d, %v", tok.Vocab(), ids)
	}
	if ids := tok.Encode("\xff\xfe"); !slices.Equal(ids, []int32{0xef, 0xbf, 0xbd}) {
		t.Errorf("bytes that are no UTF-8: %v", ids)
	}
	defer func() {
		if recover() == nil {
			t.Error("a special token that is there twice must panic")
		}
	}()
	ByteTokenizer([]string{"<a>", "<a>"})
}

func TestNewBPE(t *testing.T) {
	merges := [][2]string{{"a", "b"}, {"c", "d"}, {"ab", "cd"}, {"b", "cd"}, {"a", "bcd"}, {" ", "x"}, {"\xc3", "\xa9"}}
	for _, first := range []bool{false, true} {
		tok, err := NewBPE(BPE{Merges: merges, Special: []string{"<s>", "</s>"}, SpecialFirst: first})
		if err != nil {
			t.Fatal(err)
		}
		base, special := int32(0), int32(262)
		if first {
			base, special = 2, 0
		}
		want := []int32{base + 258, special, base + 260, base + 261, special + 1} // "a"+"bcd" makes "ab"+"cd" again
		if ids := tok.Encode("abcd<s> xé</s>"); tok.Vocab() != 264 || !slices.Equal(ids, want) {
			t.Errorf("first %v: vocab %d, %v, want %v", first, tok.Vocab(), ids, want)
		}
	}
	for _, c := range []struct {
		b    BPE
		want string
	}{
		{BPE{Special: []string{"a"}}, `"a"`},
		{BPE{Special: []string{"a"}, SpecialFirst: true}, `"a"`},
		{BPE{Special: []string{""}}, "no content"},
		{BPE{Special: []string{"\xff"}}, "UTF-8"},
		{BPE{Merges: [][2]string{{"ab", "c"}}}, `"ab"`},
	} {
		_, err := NewBPE(c.b)
		checkError(t, err, c.want)
	}
}

// naiveTraining counts all pairs anew for every merge.
func naiveTraining(texts []string, vocab int) (merges [][2]string) {
	words := map[string][]string{}
	counts := countWords(slices.Values(texts))
	id, made := map[string]int{}, 256
	for b := range 256 {
		id[string([]byte{byte(b)})] = b
	}
	for word := range counts {
		for i := range len(word) {
			words[word] = append(words[word], word[i:i+1])
		}
	}
	for made < vocab {
		pairs := map[[2]string]int{}
		for word, parts := range words {
			for i := range len(parts) - 1 {
				pairs[[2]string{parts[i], parts[i+1]}] += counts[word]
			}
		}
		var best [2]string
		for p, n := range pairs {
			lower := id[p[0]] < id[best[0]] || p[0] == best[0] && id[p[1]] < id[best[1]]
			if n > pairs[best] || n == pairs[best] && lower {
				best = p
			}
		}
		if pairs[best] < 2 {
			return merges
		}
		merges = append(merges, best)
		joined := best[0] + best[1]
		if _, known := id[joined]; !known {
			id[joined] = made
			made++
		}
		for word, parts := range words {
			out := parts[:0]
			for i := 0; i < len(parts); i++ {
				if i+1 < len(parts) && parts[i] == best[0] && parts[i+1] == best[1] {
					out = append(out, joined)
					i++
				} else {
					out = append(out, parts[i])
				}
			}
			words[word] = out
		}
	}
	return merges
}

func TestTrainBPE(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 30 {
		var texts []string
		for range 20 {
			var b strings.Builder
			for range 200 {
				b.WriteByte("aabbc dé\n"[r.IntN(10)])
			}
			texts = append(texts, b.String())
		}
		vocab := 257 + r.IntN(100)
		tok, err := TrainBPE(slices.Values(texts), vocab, []string{"<s>"})
		if err != nil {
			t.Fatal(err)
		}
		want, err := NewBPE(BPE{Merges: naiveTraining(texts, vocab-1), Special: []string{"<s>"}})
		if err != nil {
			t.Fatal(err)
		}
		if tok.Vocab() != vocab || string(tok.source) != string(want.source) {
			t.Fatalf("round %d, vocabulary of %d: got %d, or other merges than one by one", round, vocab, tok.Vocab())
		}
		slices.Reverse(texts)
		again, err := TrainBPE(slices.Values(texts), vocab, []string{"<s>"})
		if err != nil || string(again.source) != string(tok.source) {
			t.Fatalf("another order of texts gave another tokenizer (%v)", err)
		}
	}
}

func TestTrainBPERefusals(t *testing.T) {
	_, err := TrainBPE(slices.Values([]string{"ab"}), 256, []string{"<s>"})
	checkError(t, err, "256", "257")
	_, err = TrainBPE(slices.Values([]string{"abc abc"}), 300, []string{"<s>"})
	checkError(t, err, "300", "text")
	_, err = TrainBPE(slices.Values([]string{"abab abab"}), 258, []string{"<s>", "<s>"})
	checkError(t, err, "<s>")
}

func ExampleTrainBPE() {
	tok, _ := TrainBPE(slices.Values([]string{"low low lower lowest"}), 260, []string{"<s>"})
	for _, id := range tok.Encode("lower<s>") {
		fmt.Printf("%d %s\n", id, tok.Token(id))
	}
	// Output:
	// 257 low
	// 101 e
	// 114 r
	// 259 <s>
}
