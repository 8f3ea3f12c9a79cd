package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// encodeCase is a line of cases.jsonl, computed by Hugging Face's tokenizers 0.23.
type encodeCase struct {
	Text    string  `json:"text"`
	IDs     []int32 `json:"ids"`
	Decoded string  `json:"decoded"`
}

func loadCases(t testing.TB, path string) (cases []encodeCase) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c encodeCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil || len(cases) == 0 {
		t.Fatalf("%s: %d cases, %v", path, len(cases), err)
	}
	return cases
}

func loadTokenizer(t testing.TB, name string) *Tokenizer {
	t.Helper()
	tok, err := Load(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// Every case of every folder of testdata/tokenizers, twice: from the merges and from the cache.
func TestGoldenTokens(t *testing.T) {
	folders, err := filepath.Glob("testdata/*")
	if err != nil || len(folders) == 0 {
		t.Fatal("no goldens", err)
	}
	for _, folder := range folders {
		name := filepath.Base(folder)
		t.Run(name, func(t *testing.T) {
			tok := loadTokenizer(t, name)
			for range 2 {
				for _, c := range loadCases(t, filepath.Join(folder, "cases.jsonl")) {
					if ids := tok.Encode(c.Text); !slices.Equal(ids, c.IDs) {
						t.Errorf("%q:\n got %v\nwant %v", c.Text, ids, c.IDs)
					}
					if text := tok.Decode(c.IDs); text != c.Decoded {
						t.Errorf("%v:\n got %q\nwant %q", c.IDs, text, c.Decoded)
					}
				}
			}
		})
	}
}
