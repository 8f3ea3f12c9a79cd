package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever the file, reading it ends in one line of error or in a tokenizer that works.
func FuzzTokenizerJSON(f *testing.F) {
	for _, name := range []string{"flags", "unk_fused"} {
		text, err := os.ReadFile(filepath.Join("testdata", name, tokenizerName))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add(NewBytes([]string{"<s>"}).source)
	f.Add([]byte(`{"version":"1.0","model":{"type":"BPE","unk_token":"u","vocab":{"u":0,"a":1,"aa":7},"merges":["a a"]},
		"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},"decoder":{"type":"ByteLevel"},
		"added_tokens":[{"id":3,"content":" é","lstrip":true,"rstrip":true,"normalized":true,"single_word":true}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		tok, err := Parse(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		for _, s := range []string{"", "aaa <s>é e\u0301 \n", "\xff", strings.Repeat("ab", 100)} {
			ids := tok.Encode(s)
			for _, id := range ids {
				if tok.token(id) == "" {
					t.Errorf("%q: token %d has no name", s, id)
				}
			}
			if got := tok.Decode(ids); !utf8.ValidString(got) {
				t.Errorf("%q decodes to %q", s, got)
			}
		}
	})
}

// asDecoded is what a text must decode to after it was encoded: normalised between the added tokens.
func asDecoded(t *Tokenizer, text string) string {
	var b strings.Builder
	t.raw.split(text, func(s string) { b.WriteString(t.normalize(s)) }, func(id int32) { b.WriteString(t.token(id)) })
	return b.String()
}

func FuzzEncode(f *testing.F) {
	var toks []*Tokenizer
	for _, name := range []string{"qwen3", "qwen3_5", "glm5", "o200k", "tekken", "gpt2"} {
		tok := loadTokenizer(f, name)
		toks = append(toks, tok)
		for _, c := range loadCases(f, filepath.Join("testdata", name, "cases.jsonl"))[:20] {
			f.Add(c.Text)
		}
	}
	f.Add("a" + strings.Repeat("\u0301", 40) + "<|im_end|>\u0338")
	f.Add("\xf0\x9f\x98 \xff 'ſ HELLOworld'LL\u0301A\r\n /")
	f.Fuzz(func(t *testing.T, text string) {
		for _, tok := range toks {
			ids := tok.Encode(text)
			if again := tok.Encode(text); !slices.Equal(ids, again) {
				t.Errorf("%q: %v, then %v", text, ids, again)
			}
			if want := asDecoded(tok, strings.ToValidUTF8(text, "\ufffd")); tok.Decode(ids) != want {
				t.Errorf("%+q came back as %+q", text, tok.Decode(ids))
			}
			checkPieces(t, tok, strings.ToValidUTF8(text, "\ufffd"))
		}
	})
}

// checkPieces cuts a text: the pieces cover it, are cut between characters, and merge to the same by both ways.
func checkPieces(t *testing.T, tok *Tokenizer, text string) {
	var covered strings.Builder
	tok.words.each(text, func(piece string) {
		covered.WriteString(piece)
		if piece == "" || !utf8.ValidString(piece) {
			t.Errorf("%+q has the piece %+q", text, piece)
		}
		var ids []int32
		for i := range len(piece) {
			ids = append(ids, tok.bytes[piece[i]])
		}
		if short, long := tok.merges.apply(slices.Clone(ids)), tok.merges.applyLong(ids); !slices.Equal(short, long) {
			t.Errorf("%+q: %v and %v", piece, short, long)
		}
	})
	if covered.String() != text {
		t.Errorf("the pieces of %+q add up to %+q", text, covered.String())
	}
}
