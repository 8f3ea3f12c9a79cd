package tokenizer

import (
	"os"
	"strings"
	"testing"
)

// BenchmarkEncode encodes prose of many scripts and Go source, with an empty cache of words each time and with a full
// one.
func BenchmarkEncode(b *testing.B) {
	var text strings.Builder
	for _, name := range []string{"qwen3", "qwen3_5", "glm5"} {
		for _, c := range loadCases(b, "testdata/"+name+"/cases.jsonl") {
			text.WriteString(c.Text)
			text.WriteByte('\n')
		}
	}
	for _, name := range []string{"tokenizer.go", "safetensors_header.go", "pretokenize_words.go",
		"tokenizer_vocab.go"} {
		source, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		text.Write(source)
	}
	tok := loadTokenizer(b, "qwen3")
	b.Run("cold", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		for b.Loop() {
			tok.cache = newWordCache()
			tok.Encode(text.String())
		}
	})
	b.Run("warm", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		for b.Loop() {
			tok.Encode(text.String())
		}
	})
}
