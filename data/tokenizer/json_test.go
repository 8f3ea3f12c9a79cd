package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// edited is a small tokenizer.json with each old text, which must be there, replaced by a new one.
func edited(t *testing.T, oldnew ...string) string {
	t.Helper()
	tok, err := NewBPE(BPE{Merges: [][2]string{{"a", "b"}}, Special: []string{"<s>"}})
	if err != nil {
		t.Fatal(err)
	}
	text := string(tok.source)
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(text, oldnew[i]) {
			t.Fatalf("no %s in the tokenizer", oldnew[i])
		}
		text = strings.ReplaceAll(text, oldnew[i], oldnew[i+1])
	}
	return text
}

func TestTokenizerRefusals(t *testing.T) {
	const split = `"behavior": "Isolated"`
	const byteLevel = `"ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
  ]}`
	for _, c := range []struct {
		name   string
		oldnew []string
		want   []string
	}{
		{"cut short", []string{"\n  }\n}\n", ""}, []string{"JSON", "fetch"}},
		{"version", []string{`"1.0"`, `"2.0"`}, []string{`version "2.0"`}},
		{"no model", []string{`"model"`, `"modell"`}, []string{"model", "none"}},
		{"other model", []string{`"BPE"`, `"Unigram"`}, []string{"model", `"Unigram"`}},
		{"vocab list", []string{`"vocab": {`, `"vocab": [{`, "},\n    \"merges\"", "}],\n    \"merges\""},
			[]string{"model", "JSON", "vocab"}},
		{"byte fallback", []string{`"byte_fallback": false`, `"byte_fallback": true`}, []string{"byte_fallback"}},
		{"dropout", []string{`"dropout": null`, `"dropout": 0.1`}, []string{"dropout"}},
		{"prefix", []string{`"continuing_subword_prefix": ""`, `"continuing_subword_prefix": "##"`},
			[]string{"continuing_subword_prefix"}},
		{"unknown token", []string{`"unk_token": null`, `"unk_token": "<unk>"`}, []string{"unk_token", `"<unk>"`}},
		{"missing byte", []string{`"Ġ": 32`, `"Ġx": 32`}, []string{"0x20", "unk_token"}},
		{"id twice", []string{`"ab": 256`, `"ab": 255`}, []string{"255", `"ab"`}},
		{"negative id", []string{`"ab": 256`, `"ab": -1`}, []string{"-1", `"ab"`}},
		{"large id", []string{`"ab": 256`, `"ab": 4194304`}, []string{"4194304", `"ab"`}},
		{"empty token", []string{`"ab": 256`, `"ab": 256, "": 300`}, []string{"300", "empty"}},
		{"merge of unknown", []string{`["a","b"]`, `["a","bb"]`}, []string{"merge 0", `"bb"`}},
		{"merge into unknown", []string{`["a","b"]`, `["b","a"]`}, []string{"merge 0", `"ba"`}},
		{"merge of three", []string{`["a","b"]`, `["a","b","c"]`}, []string{"two tokens"}},
		{"merge line of three", []string{`["a","b"]`, `"a b c"`}, []string{"two tokens"}},
		{"merge number", []string{`["a","b"]`, `7`}, []string{"JSON"}},
		{"normalizer", []string{`"NFC"`, `"NFKC"`}, []string{"normalizer", `"NFKC"`}},
		{"no pre-tokenizer", []string{`"pre_tokenizer"`, `"pre"`}, []string{"pre_tokenizer", "none"}},
		{"other pre-tokenizer", []string{`"Split"`, `"Digits"`}, []string{"pre_tokenizer", `"Digits"`, "step 1 of 2"}},
		{"split last", []string{byteLevel, `"Split"}]}`}, []string{"pre_tokenizer", `"Split"`, "step 2 of 2"}},
		{"invalid pattern", []string{`|\\p{N}|`, `|\\p{N}++|`}, []string{"pre_tokenizer", "valid regular",
			`\\p{N}++|`}},
		{"string pattern", []string{`"Regex"`, `"String"`}, []string{"pre_tokenizer", "Regex"}},
		{"behavior", []string{split, `"behavior": "MergedWithNext"`}, []string{"pre_tokenizer", "MergedWithNext"}},
		{"inverted", []string{`"invert": false`, `"invert": true`}, []string{"pre_tokenizer", "invert true"}},
		{"prefix space unsaid", []string{`"add_prefix_space": false, `, ``}, []string{"add_prefix_space"}},
		{"no decoder", []string{`"decoder"`, `"dec"`}, []string{"decoder", "none"}},
		{"other decoder", []string{`"decoder": {"type": "ByteLevel"`, `"decoder": {"type": "Metaspace"`},
			[]string{"decoder", `"Metaspace"`}},
		{"added id", []string{`"id":257`, `"id":3`}, []string{"added_tokens", `"<s>"`, "3"}},
		{"added spelled like another", []string{`"<s>"`, `"ab"`}, []string{"added_tokens", `"ab"`, "256", "257"}},
		{"added empty", []string{`"<s>"`, `""`}, []string{"added_tokens", "no content"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := writeTemp(t, tokenizerName, []byte(edited(t, c.oldnew...)))
			_, err := Load(path)
			checkError(t, err, append(c.want, path)...)
		})
	}
	_, err := Load(filepath.Join(t.TempDir(), "none"))
	checkError(t, err, "none", "no such file")
	dir := t.TempDir()
	_, err = Load(dir)
	checkError(t, err, filepath.Join(dir, tokenizerName), "no such file")
}

// Spellings that mean the same as what NewBPE writes.
func TestTokenizerOtherSpellings(t *testing.T) {
	want := []int32{'x', ' ', 256, 257, 256, 'c'}
	for _, oldnew := range [][]string{
		nil,
		{`["a","b"]`, `"a b"`},
		{"\n    \"type\": \"BPE\",", ""},
		{`{"type": "NFC"}`, `{"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFC"}]}`},
		{`{"type": "NFC"}`, `{"type": "Sequence", "normalizers": []}`},
		{`{"type": "NFC"}`, `null`},
		{`"Isolated", "invert": false`, `"Removed", "invert": true`},
		{`"decoder": {"type": "ByteLevel"`,
			`"decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]`},
		{`"Ã": 195,`, `"Ã": 195, "😀": 400,`},
	} {
		path := writeTemp(t, tokenizerName, []byte(edited(t, oldnew...)))
		tok, err := Load(filepath.Dir(path))
		if err != nil {
			t.Errorf("%q: %v", oldnew, err)
			continue
		}
		if ids := tok.Encode("x ab<s>abc"); !slices.Equal(ids, want) || tok.Decode(ids) != "x ab<s>abc" {
			t.Errorf("%q: %v %q", oldnew, ids, tok.Decode(ids))
		}
	}
}

func TestVocabulary(t *testing.T) {
	text := edited(t, `"ab": 256`, `"ab": 300`)
	tok, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	ab, ok := tok.ID("ab")
	s, special := tok.ID("<s>")
	_, none := tok.ID("abc")
	if tok.Vocab() != 301 || ab != 300 || !ok || s != 257 || !special || none {
		t.Errorf("vocab %d, ab %d %v, <s> %d %v, abc %v", tok.Vocab(), ab, ok, s, special, none)
	}
	if tok.token(300) != "ab" || tok.token(32) != "Ġ" || tok.token(256) != "" || tok.token(-1) != "" ||
		tok.token(301) != "" {
		t.Error("names of tokens")
	}
	if got := tok.Decode([]int32{300, 256, -1, 9999, 257}); got != "ab<s>" {
		t.Errorf("ids without a token: %q", got)
	}
}

func TestSaveKeepsBytes(t *testing.T) {
	want, err := os.ReadFile("testdata/flags/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "other.json")} {
		if err := loadTokenizer(t, "flags").Save(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{tokenizerName, "other.json"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s differs (%v)", name, err)
		}
	}
}

func writeTemp(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkError wants one line that names every one of the parts.
func checkError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error of several lines: %q", err)
	}
}

// token is a token as the file spells it, "" if no token has the id.
func (t *Tokenizer) token(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}
