package data

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/data/ordered"
)

// conversations reads testdata/templates/conversations.json.
func conversations(t testing.TB) (chats []Chat) {
	t.Helper()
	text, err := os.ReadFile("testdata/templates/conversations.json")
	if err != nil {
		t.Fatal(err)
	}
	list, err := ordered.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list.([]any) {
		d := x.(*ordered.Dict)
		messages, _ := d.Get("messages")
		c := Chat{Messages: messages.([]any)}
		c.Tools, _ = d.Get("tools")
		if kwargs, ok := d.Get("kwargs"); ok {
			c.Kwargs = kwargs.(*ordered.Dict)
		}
		chats = append(chats, c)
	}
	return chats
}

func loadTestTemplate(t testing.TB, name string) *Template {
	t.Helper()
	path := filepath.Join("testdata/templates", name)
	if strings.HasPrefix(name, "template_chatml") {
		path = name
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := NewTemplate(name, string(source), map[string]string{"bos_token": "<s>", "eos_token": "<|im_end|>"})
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

// goldenTime is when the goldens were rendered.
var goldenTime = time.Date(2026, 3, 7, 15, 4, 5, 0, time.UTC)

// Every template renders every conversation to what transformers makes of it.
func TestTemplateGolden(t *testing.T) {
	f, err := os.Open("testdata/templates/golden.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	chats := conversations(t)
	lines := bufio.NewScanner(f)
	n := 0
	for ; lines.Scan(); n++ {
		var want struct {
			Template, Text, Error string
			Conversation          int
			Prompt                bool
			Generated             []string
		}
		if err := json.Unmarshal(lines.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		got, err := loadTestTemplate(t, want.Template).renderAs(t.Context(), chats[want.Conversation], want.Prompt,
			goldenTime)
		var parts []string
		for _, g := range got.Generated {
			parts = append(parts, got.Text[g[0]:g[1]])
		}
		switch {
		case want.Error != "" && (err == nil || !strings.HasSuffix(err.Error(), want.Error)):
			t.Errorf("%s %d: %v, want %s", want.Template, want.Conversation, err, want.Error)
		case want.Error == "" && (err != nil || got.Text != want.Text):
			t.Errorf("%s %d: %v\ngot\n%q\nwant\n%q", want.Template, want.Conversation, err, got.Text, want.Text)
		case !slices.Equal(parts, want.Generated):
			t.Errorf("%s %d: generated %q, want %q", want.Template, want.Conversation, parts, want.Generated)
		}
	}
	if n < 40 || lines.Err() != nil {
		t.Fatalf("%d goldens, %v", n, lines.Err())
	}
}

func TestLoadTemplate(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		tmpl, err := LoadTemplate(dir)
		if err != nil {
			t.Fatal(err)
		}
		chat := Chat{Messages: []any{Message("user", "x")}}
		if got, err := tmpl.Render(t.Context(), chat, true, goldenTime); err != nil || got != want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
	if _, err := LoadTemplate(dir); !errors.Is(err, ErrNoTemplate) {
		t.Fatal(err)
	}
	write("tokenizer_config.json",
		`{"bos_token": null, "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": "<p>"}`)
	if _, err := LoadTemplate(dir); !errors.Is(err, ErrNoTemplate) {
		t.Fatal(err)
	}
	write("tokenizer_config.json", `{"eos_token": {"content": "</s>"}, "chat_template": "{{ bos_token is defined `+
		`}}{{ messages[0].content }}{{ eos_token }}\n"}`)
	expect("Falsex</s>")
	write("tokenizer_config.json", `{"eos_token": "</s>", "chat_template": [{"name": "tool_use", "template": "T"}, `+
		`{"name": "default", "template": "D{{ eos_token }}"}]}`)
	expect("D</s>")
	tmpl, err := LoadTemplate(dir)
	if err != nil || tmpl.EndOfTurn() != "</s>" || tmpl.Source() != "D{{ eos_token }}" {
		t.Fatal(err)
	}
	chat := Chat{Messages: []any{Message("user", "x")}, Tools: []any{}}
	if got, err := tmpl.Render(t.Context(), chat, false, goldenTime); err != nil || got != "T" {
		t.Fatalf("with tools: %q, %v", got, err)
	}
	write("chat_template.jinja", "J{{ eos_token }}")
	expect("J</s>")

	write("chat_template.jinja", "a\n{% if %}")
	wantError(t, "line 2", func() error { _, err := LoadTemplate(dir); return err })
	write("tokenizer_config.json", `{"chat_template": 3}`)
	wantError(t, "neither a string nor a list", func() error { _, err := LoadTemplate(dir); return err })
	write("tokenizer_config.json", `{"chat_template": [{"name": "x", "template": ""}]}`)
	wantError(t, `no template named "default"`, func() error { _, err := LoadTemplate(dir); return err })
	write("tokenizer_config.json", `{`)
	wantError(t, "tokenizer_config.json", func() error { _, err := LoadTemplate(dir); return err })
}

// wantError wants an error of one line that says want.
func wantError(t testing.TB, want string, f func() error) {
	t.Helper()
	if err := f(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want one line with %q", err, want)
	}
}

func TestDefaultTemplate(t *testing.T) {
	chat := Chat{Messages: []any{Message("system", "S"), Message("user", "U")}}
	got, err := DefaultTemplate().Render(t.Context(), chat, true, time.Time{})
	if want := "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"; err != nil ||
		got != want {
		t.Fatalf("%q, %v, want %q", got, err, want)
	}
}

func BenchmarkTemplate(b *testing.B) {
	tmpl, c := loadTestTemplate(b, "thinking.jinja"), conversations(b)[3]
	for b.Loop() {
		if _, err := tmpl.Render(b.Context(), c, false, goldenTime); err != nil {
			b.Fatal(err)
		}
	}
}
