package data

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// questionsOf reads lines as a file named f.
func questionsOf(t testing.TB, lines string, o Options) *Questions {
	t.Helper()
	q, err := readQuestions("f", strings.NewReader(lines), o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestQuestionsJSONL(t *testing.T) {
	const hi = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
	lines := []string{
		`{"prompt": "1+1=", "answer": "2", "level": {"hard": false}}`,
		`{"messages": [{"role": "user", "content": "Hi"}], "answer": ""}`,
		`{"prompt": [{"role": "user", "content": "Hi"}]}`,
		`{"ids": [97, 98]}`,
	}
	q := questionsOf(t, strings.Join(lines, "\r\n"), testOptions())
	want := []string{"1+1=", hi, hi, "ab"}
	if q.Len() != len(want) || q.Tokens != 4+2*len(byteCodec{}.Encode(hi))+2 {
		t.Fatalf("%d questions of %d tokens", q.Len(), q.Tokens)
	}
	for i, text := range want {
		if q.Text(i) != text || (byteCodec{}).Decode(q.Prompt(i)) != text {
			t.Errorf("question %d is %q, want %q", i, q.Text(i), text)
		}
		a := q.Answer(i, "said")
		if a.Question != i || a.Prompt != text || a.Text != "said" || string(a.Fields) != lines[i] {
			t.Errorf("answer %+v", a)
		}
	}
	if got := q.Answer(0, "").Want + "|" + q.Answer(1, "").Want; got != "2|" {
		t.Errorf("answers %q", got)
	}
	wantError(t, `f:3: no text under "answer"`, q.answered)
}

func TestTaskQuestions(t *testing.T) {
	c := small()
	c.Train, c.Test = 9, 5
	q, err := NewTaskQuestions(c, Test, testOptions())
	if err != nil || q.Len() != 5 {
		t.Fatalf("%v", err)
	}
	for i := range q.Len() {
		e := c.Example(Test, i)
		if q.Text(i) != e.Prompt || !slices.Equal(q.Prompt(i), byteCodec{}.Encode(e.Prompt)) ||
			q.Answer(i, "").Want != e.Completion {
			t.Errorf("question %d is %q", i, q.Text(i))
		}
	}
	o := testOptions()
	o.Codec = nil
	wantError(t, "test split: the model folder has no tokenizer.json", func() error {
		_, err := NewTaskQuestions(c, Test, o)
		return err
	})
}

func TestQuestionsLong(t *testing.T) {
	const lines = `{"prompt": "aaaa", "answer": "1"}` + "\n" + `{"prompt": "a", "answer": "2"}`
	o := testOptions()
	o.MaxRows = 3
	wantError(t, "f:1: the prompt has 4 tokens and 3 fit", func() error {
		_, err := readQuestions("f", strings.NewReader(lines), o)
		return err
	})
	o.Long = LongDrop
	if q := questionsOf(t, lines, o); q.Len() != 1 || q.Dropped != 1 || q.Answer(0, "").Want != "2" {
		t.Errorf("%+v", q)
	}
	o.MaxRows = 4
	if q := questionsOf(t, lines, o); q.Len() != 2 || q.Dropped != 0 {
		t.Errorf("%+v", q)
	}
	wantError(t, "f: no question is left, 1 were too long", func() error {
		_, err := readQuestions("f", strings.NewReader(`{"prompt": "aaaaa"}`), o)
		return err
	})
	o.Long = LongTruncate
	wantError(t, `f: long is "truncate"`, func() error {
		_, err := readQuestions("f", strings.NewReader(lines), o)
		return err
	})
}

func TestQuestionsErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "f:1: the file is empty",
		`{"prompt": "a"}` + "\n[]":      "f:2: the line is not a JSON object",
		`{"prompt": ""}`:                "f:1: the prompt has no token",
		`{"prompt": 1}`:                 `f:1: no text under "prompt"`,
		`{"prompt": []}`:                "f:1: messages is not a list of messages",
		`{"prompt": "a", "answer": 5}`:  `f:1: no text under "answer"`,
		`{"ids": []}`:                   `f:1: "ids" has 0 tokens`,
		`{"ids": [258]}`:                "f:1: ids[0] is 258",
		`{"answer": "a"}`:               "f:1: give exactly one of ids, prompt and messages",
		`{"prompt": "a", "ids": [1]}`:   "f:1: give exactly one of ids, prompt and messages",
		`{"messages": [{"role": "x"}]}`: `f:1: messages[0]: the role is "x"`,
	} {
		wantError(t, want, func() error {
			_, err := readQuestions("f", strings.NewReader(text), testOptions())
			return err
		})
	}
	o := testOptions()
	o.Template = nil
	wantError(t, "f:1: the model folder has no chat template", func() error {
		_, err := readQuestions("f", strings.NewReader(`{"messages": [{"role": "user", "content": "a"}]}`), o)
		return err
	})
	o.Codec = nil
	wantError(t, "f:1: the model folder has no tokenizer.json", func() error {
		_, err := readQuestions("f", strings.NewReader(`{"prompt": "a"}`), o)
		return err
	})
	if q := questionsOf(t, `{"ids": [1]}`, o); q.Text(0) != "" {
		t.Errorf("%q", q.Text(0))
	}
	o.Vocab = 100
	o.End = -1
	o.Codec = byteCodec{}
	wantError(t, "f:1: token 1 has id 122", func() error {
		_, err := readQuestions("f", strings.NewReader(`{"prompt": "az"}`), o)
		return err
	})
}

// Whatever differs in what is asked or wanted, the digest does.
func TestQuestionsDigest(t *testing.T) {
	seen := map[uint64]string{}
	for _, lines := range []string{
		`{"prompt": "ab"}`, `{"prompt": "ba"}`, `{"prompt": "ab", "answer": "1"}`, `{"prompt": "ab", "answer": "2"}`,
		`{"prompt": "ab", "x": 1}`,
		`{"prompt": "ab"}` + "\n" + `{"prompt": "c"}`, `{"prompt": "c"}` + "\n" + `{"prompt": "ab"}`,
	} {
		d := questionsOf(t, lines, testOptions()).Digest()
		if d != questionsOf(t, lines+"\r\n", testOptions()).Digest() {
			t.Errorf("%s: the digest changes", lines)
		}
		if other, ok := seen[d]; ok {
			t.Errorf("%s and %s have one digest", lines, other)
		}
		seen[d] = lines
	}
	c := small()
	c.Train = 5
	for seed := range uint64(3) {
		c.Seed = seed
		q, err := NewTaskQuestions(c, Train, testOptions())
		if err != nil {
			t.Fatal(err)
		}
		seen[q.Digest()] = fmt.Sprint(seed)
	}
	if len(seen) != 10 {
		t.Errorf("%d digests", len(seen))
	}
}

func TestLoadQuestions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.jsonl")
	if err := os.WriteFile(path, []byte(`{"prompt": "a"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if q, err := LoadQuestions(path, testOptions()); err != nil || q.Len() != 1 {
		t.Fatalf("%v", err)
	}
	wantError(t, "no such file", func() error { _, err := LoadQuestions(path+"x", testOptions()); return err })
}

// Whatever the text, reading it gives an error of one line or questions that hold together.
func FuzzQuestions(f *testing.F) {
	for _, s := range []string{
		`{"prompt": "1+1=", "answer": "2"}`, `{"ids": [97, 98], "answer": "x", "y": [1, null]}`, "{}", "\n", "[",
		`{"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "tools": [], ` +
			`"chat_template_kwargs": {"enable_thinking": true}}`,
	} {
		f.Add([]byte(s))
	}
	o := testOptions()
	o.Template, o.Long, o.MaxRows = loadTestTemplate(f, "thinking.jinja"), LongDrop, 200
	f.Fuzz(func(t *testing.T, text []byte) {
		q, err := readQuestions("f", bytes.NewReader(text), o)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("%q", err)
			}
			return
		}
		for i := range q.Len() {
			if n := len(q.Prompt(i)); n == 0 || n > o.MaxRows {
				t.Fatalf("prompt of %d tokens", n)
			}
			if _, err := jsonLines([]Answer{q.Answer(i, string(text))}); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
		}
	})
}
