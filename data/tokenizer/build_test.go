package tokenizer

import (
	"path/filepath"
	"slices"
	"testing"
)

func TestByteTokenizer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	if err := NewBytes([]string{"<|end|>", "<é>"}).Save(path); err != nil {
		t.Fatal(err)
	}
	tok, err := Load(path)
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
	NewBytes([]string{"<a>", "<a>"})
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
