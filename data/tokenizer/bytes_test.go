package tokenizer

import (
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

func TestByteAlphabet(t *testing.T) {
	if byteRunes[' '] != 'Ġ' || byteRunes['\n'] != 'Ċ' || byteRunes[0] != 'Ā' || byteRunes[0xad] != 'Ń' ||
		byteRunes['A'] != 'A' || byteRunes[0xff] != 'ÿ' {
		t.Error("the characters of bytes")
	}
	var all []byte
	for b := range 256 {
		all = append(all, byte(b))
	}
	token := toByteLevel(string(all))
	if len([]rune(token)) != 256 || fromByteLevel(token) != string(all) {
		t.Errorf("%q", token)
	}
	if got := fromByteLevel("Ġ中"); got != "Ġ中" {
		t.Errorf("a token that stands for no bytes became %q", got)
	}
}

// The examples of table 3-8 of the Unicode standard and its neighbours, and the limits of second bytes.
func TestValidUTF8(t *testing.T) {
	for _, c := range [][2]string{
		{"a\xf1\x80\x80\xe1\x80\xc2b\x80c\x80\xbfd", "a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd"},
		{"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82A", "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffdA"},
		{"\xed\xa0\x80\xed\x9f\xbf", "\ufffd\ufffd\ufffd\ud7ff"},
		{"\xf4\x91\x92\x93\xffA\x80\xbf", "\ufffd\ufffd\ufffd\ufffd\ufffdA\ufffd\ufffd"},
		{"\xe1\x80\xe2\xf0\x91\x92\xf1\xbfA", "\ufffd\ufffd\ufffd\ufffdA"},
		{"\xf0\x9f\x98", "\ufffd"},
		{"\xe4\xbd", "\ufffd"},
		{"日本", "日本"},
		{"\ufffd", "\ufffd"},
		{"", ""},
	} {
		if got := validUTF8([]byte(c[0])); got != c[1] {
			t.Errorf("%+q: %+q, want %+q", c[0], got, c[1])
		}
	}
}

// The slow way must agree with the library wherever that inserts nothing, and insert nothing where it does.
func TestNFCOfManyMarks(t *testing.T) {
	for _, c := range [][2]string{
		{"a" + strings.Repeat("\u0301", 40), "á" + strings.Repeat("\u0301", 39)},
		{"e" + strings.Repeat("\u0301", 31) + "\u0327", "\u0229" + strings.Repeat("\u0301", 31)},
		{"\u1100\u1161\u11a8" + strings.Repeat("\u0308", 35) + "\u212b", "각" + strings.Repeat("\u0308", 35) + "Å"},
		// one class: the first mark is between
		{"a\u0305" + strings.Repeat("\u0301", 35), "a\u0305" + strings.Repeat("\u0301", 35)},
		{"x\u034f" + strings.Repeat("\u0316", 32), "x\u034f" + strings.Repeat("\u0316", 32)},
	} {
		if got := nfc(c[0]); got != c[1] {
			t.Errorf("%+q: %+q, want %+q", c[0], got, c[1])
		}
	}
	for _, c := range loadCases(t, "testdata/qwen3/cases.jsonl") {
		if got, want := nfcOfManyMarks(c.Text), norm.NFC.String(c.Text); got != want {
			t.Errorf("%+q: %+q, want %+q", c.Text, got, want)
		}
	}
	var all strings.Builder // every character, alone and behind a letter and a mark
	for r := rune(1); r < 0x30000; r++ {
		if r < 0xd800 || r > 0xdfff {
			all.WriteString(string(r) + " a\u0323" + string(r) + " ")
		}
	}
	got, want := strings.Split(nfcOfManyMarks(all.String()), " "), strings.Split(norm.NFC.String(all.String()), " ")
	if len(got) != len(want) {
		t.Fatalf("%d and %d parts", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%+q, want %+q", got[i], want[i])
		}
	}
}
