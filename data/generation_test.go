package data

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestGeneration(t *testing.T) {
	dir := t.TempDir()
	if g, err := LoadGeneration(dir, 320); err != nil || g.EOS != nil || g.Sampling() != "" {
		t.Fatalf("no file: %+v, %v", g, err)
	}
	path := filepath.Join(dir, "generation_config.json")
	load := func(text string) (Generation, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return LoadGeneration(dir, 320)
	}
	for text, want := range map[string]string{
		`{}`:                       "[]  []",
		`{"eos_token_id": 7}`:      "[7]  []",
		`{"eos_token_id": null}`:   "[]  []",
		`{"eos_token_id": [3, 7]}`: "[3 7]  []",
		`{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_new_tokens": 9, "do_sample": true}`: "[] temperature " +
			"0.6, top-p 0.95, top-k 20, at most 9 tokens []",
		`{"temperature": 0.6, "do_sample": false}`:                                "[] temperature 0 []",
		`{"do_sample": false}`:                                                    "[] temperature 0 []",
		`{"top_k": -1, "temperature": null}`:                                      "[] top-k 0 []",
		`{"repetition_penalty": 1, "min_p": 0, "num_beams": 1, "typical_p": 0.9}`: "[]  [typical_p = 0.9]",
		`{"repetition_penalty": 1.05, "min_p": 0.1, "eos_token_id": 319}`: "[319] min-p 0.1, " +
			"repetition-penalty 1.05 []",
		`{"penalty_alpha": null, "num_beams": 4}`: "[]  [num_beams = 4]",
	} {
		g, err := load(text)
		if got := fmt.Sprint(g.EOS, " ", g.Sampling(), " ", g.Unsupported); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		`[]`:                         "not a JSON object",
		`{`:                          "not a JSON object",
		`{"eos_token_id": "a"}`:      "eos_token_id: want a token id or a list",
		`{"eos_token_id": [1.5]}`:    "eos_token_id: want a token id or a list",
		`{"eos_token_id": [1,null]}`: "eos_token_id: want a token id or a list",
		`{"eos_token_id": [-1]}`:     "eos_token_id: want token ids of at least 0",
		`{"eos_token_id": [1,320]}`:  "eos_token_id: 320 is not an id of the model, whose vocab_size is 320",
		`{"min_p": 1.5}`:             "min_p: want a number from 0 to 1, got 1.5",
		`{"repetition_penalty": 0}`:  "repetition_penalty: want a number from 0.01 to 100, got 0",
		`{"temperature": "hot"}`:     `temperature: want a number from 0 to 1e+06, got "hot"`,
		`{"temperature": -1}`:        "temperature: want a number",
		`{"temperature": 1e-9}`:      "temperature: want 0, or at least",
		`{"top_p": 1.5}`:             "top_p: want a number from 0 to 1, got 1.5",
		`{"top_p": 0}`:               "top_p: want a number above 0",
		`{"top_k": 2.5}`:             "top_k: want an integer",
		`{"top_k": -2}`:              "top_k: want an integer",
		`{"max_new_tokens": 0}`:      "max_new_tokens: want an integer of at least 1",
		`{"do_sample": "no"}`:        "do_sample: want true or false",
		`{"top_k": 99999999999999}`:  "top_k: want an integer",
	} {
		wantError(t, path+": "+want, func() error { _, err := load(text); return err })
	}
}

func TestUnion(t *testing.T) {
	if got := Union([]int32{5}, []int32{3, 5, 3}, nil, []int32{4}); !slices.Equal(got, []int32{5, 3, 4}) {
		t.Errorf("%v", got)
	}
}

// Whatever the file says, reading it gives an error of one line or settings that a request may have.
func FuzzGeneration(f *testing.F) {
	for _, s := range []string{
		`{"eos_token_id": [1, 2], "do_sample": false}`, `{"temperature": 0.5, "top_p": 0.9, "top_k": 3}`,
		`{"num_beams": [1]}`, "null",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		g, err := parseGeneration(text, 320)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		hot := g.Temperature != nil && !(*g.Temperature >= 0 && *g.Temperature <= 1e6)
		if g.MinP != nil && !(*g.MinP <= 1) || g.Repetition != nil && !(*g.Repetition > 0) ||
			slices.ContainsFunc(g.EOS, func(id int32) bool { return id >= 320 }) {
			t.Fatalf("%q: %v, %s", text, g.EOS, g.Sampling())
		}
		if hot || g.TopK != nil && *g.TopK < 0 || g.TopP != nil && !(*g.TopP > 0 && *g.TopP <= 1) {
			t.Fatalf("%q: %s", text, g.Sampling())
		}
	})
}
