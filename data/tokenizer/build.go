package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"lockstep/data/atomicfile"
)

// NewBytes has a token for each byte, whose id is the byte, and then the special tokens; it merges nothing.
// Special tokens that are empty or that repeat are a bug.
func NewBytes(special []string) *Tokenizer {
	t, err := NewBPE(BPE{Special: special})
	if err != nil {
		panic(fmt.Sprintf("tokenizer: %v", err))
	}
	return t
}

// BPE describes a byte-level tokenizer with Qwen3's pattern and normalisation. Ids are those of the 256 bytes in order,
// then those of what merges make, in order, with the special tokens behind them or, if SpecialFirst, in front.
type BPE struct {
	Merges       [][2]string // pairs of byte strings, each a byte or made by a merge before it
	Special      []string
	SpecialFirst bool
}

// NewBPE makes a tokenizer.
func NewBPE(b BPE) (*Tokenizer, error) {
	var vocab []string
	if b.SpecialFirst {
		vocab = append(vocab, b.Special...)
	}
	for c := range 256 {
		vocab = append(vocab, string(byteRunes[c]))
	}
	merges := make([][2]string, len(b.Merges))
	made := map[string]bool{}
	for i, m := range b.Merges {
		merges[i] = [2]string{toByteLevel(m[0]), toByteLevel(m[1])}
		if joined := merges[i][0] + merges[i][1]; !made[joined] {
			made[joined] = true
			vocab = append(vocab, joined)
		}
	}
	first := len(vocab) // of the special tokens
	if b.SpecialFirst {
		first = 0
	}
	var added []addedToken
	for i, content := range b.Special {
		added = append(added, addedToken{ID: int32(first + i), Content: content, Special: true})
	}
	if err := checkVocabulary(vocab, b.Special, b.SpecialFirst); err != nil {
		return nil, err
	}
	return Parse(tokenizerJSON(vocab, merges, added))
}

// checkVocabulary refuses what JSON would lose or change: tokens that are there twice or that are no UTF-8.
func checkVocabulary(vocab []string, special []string, listed bool) error {
	all := vocab
	if !listed {
		all = slices.Concat(vocab, special)
	}
	seen := map[string]bool{}
	for _, token := range all {
		if seen[token] || !utf8.ValidString(token) {
			return fmt.Errorf("token %q is listed twice, or is not UTF-8: remove it", token)
		}
		seen[token] = true
	}
	return nil
}

// tokenizerJSON is a file that Hugging Face's tokenizers library loads, with vocab in the order of ids.
func tokenizerJSON(vocab []string, merges [][2]string, added []addedToken) []byte {
	var b bytes.Buffer
	list := func(n int, each func(i int)) {
		for i := range n {
			b.WriteString("\n      ")
			each(i)
			if i < n-1 {
				b.WriteByte(',')
			}
		}
	}
	b.WriteString("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [")
	list(len(added), func(i int) { b.Write(marshal(added[i])) })
	fmt.Fprintf(&b, `
  ],
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": %s}, "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
  ]},
  "post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
  "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {`, marshal(qwen2Regex))
	list(len(vocab), func(i int) { fmt.Fprintf(&b, "%s: %d", marshal(vocab[i]), i) })
	b.WriteString("\n    },\n    \"merges\": [")
	list(len(merges), func(i int) { b.Write(marshal(merges[i])) })
	b.WriteString("\n    ]\n  }\n}\n")
	return b.Bytes()
}

// Save writes the tokenizer.json, whole or not at all, to a path or into a folder. A tokenizer that was loaded is
// written byte for byte as it was.
func (t *Tokenizer) Save(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, tokenizerName)
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		_, err := w.Write(t.source)
		return err
	})
}

// marshal is the JSON of strings, lists and structs, which always have one.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // tokens stay as people write them
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("tokenizer: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
