package tokenizer

import (
	"strings"
	"testing"
)

// Whatever the bytes and wherever tokens end, the pieces are the text, and each is whole characters.
func FuzzDecoder(f *testing.F) {
	tok := NewBytes(nil)
	for _, s := range []string{"", "a", "é", "\U0001f600x", "\xf0\x9f", "\xf0\x9f\xf0\x9f\x98\x80", "\xe2\x82a\xac",
		"\xff\xfe\xc3", "\xed\xa0\x80", "日本\xe6"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var ids []int32
		for _, b := range text {
			ids = append(ids, tok.bytes[b])
		}
		want := tok.Decode(ids)
		d, got := Decoder{Tokenizer: tok}, ""
		for _, id := range ids {
			got += d.Add(id)
			if !strings.HasPrefix(want, got) {
				t.Fatalf("%q: %q is no beginning of %q", text, got, want)
			}
		}
		if got += d.Rest(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	})
}

// A character is given as soon as it is whole.
func TestDecoder(t *testing.T) {
	tok := NewBytes(nil)
	d := Decoder{Tokenizer: tok}
	var got []string
	for _, b := range []byte("aé\xe2\x82x") {
		got = append(got, d.Add(tok.bytes[b]))
	}
	if s := strings.Join(got, "|"); s != "a||é|||\ufffdx" || d.Rest() != "" {
		t.Errorf("%q", s)
	}
}
