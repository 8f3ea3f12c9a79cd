package data

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// samplesOf reads one line and shows its samples.
func samplesOf(t testing.TB, line string, o Options) []string {
	t.Helper()
	d, err := readJSONL("f", strings.NewReader(line), o)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	var got []string
	for i := range d.Len() {
		got = append(got, show(t, d.Sample(i)))
	}
	return got
}

func TestJSONL(t *testing.T) {
	const hi = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
	for line, want := range map[string]string{
		`{"prompt": "1+1=", "completion": "2", "id": 7}`:               "1+1=[2<|im_end|>]",
		`{"ids": [97, 98, 99]}`:                                        "a[bc]",
		`{"ids": [97, 98, 99, 100], "loss_mask": [1, 0, true, false]}`: "ab[c]",
		`{"ids": [97, 98, 99, 100], "labels": [-100, 98, -100, 100]}`:  "a[b]c[d]",
		`{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}`: hi +
			"[Ho<|im_end|>]",
		`{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}, {"role": "user", ` +
			`"content": "tail"}]}`: hi + "[Ho<|im_end|>]",
		`{"messages": [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}, ` +
			`{"role": "assistant", "content": "Ho"}]}`: hi + "[Ho<|im_end|>]",
		`{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}, {"role": "user", ` +
			`"content": "Hi"}, {"role": "assistant", "content": "Ha"}]}`: hi + "[Ho<|im_end|>]\n" + hi +
			"[Ha<|im_end|>]",
		`{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Ho"}]}`: hi +
			"[Ho<|im_end|>]",
		`{"prompt": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}, {"role": "user", ` +
			`"content": "Hi"}], "completion": [{"role": "assistant", "content": "Ha"}]}`: hi + "Ho<|im_end|>\n" + hi +
			"[Ha<|im_end|>]",
	} {
		got := samplesOf(t, line, testOptions())
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s\ngives %q\nwant  %q", line, got, want)
		}
	}
}

// A label that is not the next id is what is learned there.
func TestJSONLForeignLabel(t *testing.T) {
	d, err := readJSONL("f", strings.NewReader(`{"ids": [1, 2, 3], "labels": [-100, 9, -100]}`), testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if s := d.Sample(0); len(s.IDs) != 1 || s.IDs[0] != 1 || s.Targets[0] != 9 {
		t.Fatalf("%v", s)
	}
}

// A template that drops earlier thinking gives one sample for each turn, with what the model reads in serving.
func TestJSONLThinking(t *testing.T) {
	o := testOptions()
	o.Template = loadTestTemplate(t, "thinking.jinja")
	got := samplesOf(t, `{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B", `+
		`"reasoning_content": "b"}, {"role": "user", "content": "C"}, {"role": "assistant", "content": "D"}]}`, o)
	want := []string{
		"<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n[<think>\nb\n</think>\n\nB<|im_end|>]",
		"<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n" +
			"<|im_start|>assistant\n[<think>\n\n</think>\n\nD<|im_end|>]",
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Fatalf("%q, want %q", got, want)
	}
}

// Tools, calls and results: the calls are learned, the results are not; key order is the file's.
func TestJSONLTools(t *testing.T) {
	o := testOptions()
	o.Template = loadTestTemplate(t, "thinking.jinja")
	got := samplesOf(t, `{"tools": [{"name": "f"}], "messages": [{"role": "user", "content": "A"}, {"role": `+
		`"assistant", "content": null, "reasoning_content": "q", "tool_calls": [{"function": {"name": "f", `+
		`"arguments": {"z": 1, "a": 2}}}]}, {"role": "tool", "content": "R"}, {"role": "assistant", "content": "D", `+
		`"reasoning_content": "r"}]}`, o)
	_, after, _ := strings.Cut(strings.Join(got, "|"), "A<|im_end|>\n")
	want := "<|im_start|>assistant\n[<think>\nq\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": " +
		"1, \"a\": 2}}\n</tool_call><|im_end|>]\n" +
		"<|im_start|>user\n<tool_response>\nR\n</tool_response><|im_end|>\n" +
		"<|im_start|>assistant\n[<think>\nr\n</think>\n\nD<|im_end|>]"
	if after != want {
		t.Fatalf("%q, want %q", after, want)
	}
}

func TestJSONLGenerationBlocks(t *testing.T) {
	o := testOptions()
	o.Template = loadTestTemplate(t, "generation.jinja")
	for line, want := range map[string]string{
		`{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", ` +
			`"content": "C"}, {"role": "assistant", "content": "D"}]}`: "<s>[user]A[assistant][B<|im_end|>]" +
			"[user]C[assistant][D<|im_end|>]",

		`{"prompt": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", ` +
			`"content": "C"}], ` +
			`"completion": [{"role": "assistant", "content": "D"}]}`: "<s>[user]A[assistant]B<|im_end|>" +
			"[user]C[assistant][D<|im_end|>]",
	} {
		if got := samplesOf(t, line, o); len(got) != 1 || got[0] != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Variables of the template may come with a line.
func TestJSONLKwargs(t *testing.T) {
	o := testOptions()
	o.Template = loadTestTemplate(t, "thinking.jinja")
	const line = `{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}], ` +
		`"chat_template_kwargs": {"enable_thinking": false}}`
	if got, want := samplesOf(t, line, o)[0],
		"<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n[B<|im_end|>]"; got != want {
		t.Fatalf("%q, want %q", got, want)
	}
}

func TestJSONLErrors(t *testing.T) {
	const ok = `{"prompt": "a", "completion": "b"}` + "\n"
	for _, c := range [][2]string{
		{"", "f:1: the file is empty"},
		{ok + "\n" + ok, "f:2: the line is empty"},
		{ok + " \n", "f:2: the line is empty"},
		{ok + `{"prompt":`, "f:2: the line is not JSON"},
		{`[]`, "f:1: the line is not a JSON object"},
		{`{"a": 1} {}`, "f:1: the line is not JSON (more text"},
		{`{"prompt": "a"}`, "f:1: give exactly one of messages"},
		{`{"prompt": "a", "completion": "b", "ids": [1]}`, "f:1: give exactly one of messages"},
		{`{"prompt": "a", "completion": []}`, "f:1: one of prompt and completion is a text"},
		{`{"prompt": 1, "completion": 2}`, "f:1: prompt is not a list of messages"},
		{`{"messages": []}`, "f:1: messages is not a list of messages"},
		{`{"messages": [1]}`, "f:1: messages[0] is not an object"},
		{`{"messages": [{"role": "bot", "content": ""}]}`, `f:1: messages[0]: the role is "bot"`},
		{`{"messages": [{"content": ""}]}`, "f:1: messages[0]: the role is missing"},
		{`{"messages": [{"role": ["user"]}]}`, "f:1: messages[0]: the role is missing or not a string"},
		{`{"messages": [{"role": "user"}]}`, "f:1: messages[0]: there is neither content nor tool_calls"},
		{`{"messages": [{"role": "user", "content": 1}]}`, "f:1: messages[0]: the content is neither"},
		{`{"messages": [{"role": "user", "content": ["x"]}]}`, "f:1: messages[0]: content[0] is not an object"},
		{`{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`,
			"f:1: messages[0]: content[0] is not a text part"},
		{`{"messages": [{"role": "user", "content": "", "tool_calls": 1}]}`,
			"f:1: messages[0]: tool_calls is not a list"},
		{`{"messages": [{"role": "user", "content": "a"}]}`, "f:1: no assistant message"},
		{`{"messages": [{"role": "user", "content": "a"}], "tools": 1}`, "f:1: tools is not a list"},
		{`{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": 1}`,
			"f:1: chat_template_kwargs is not an object"},
		{`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": [1]}`,
			"knows no tools"},
		{`{"ids": "abc"}`, "f:1: ids is not a list"},
		{`{"ids": [1.5]}`, "f:1: ids[0] is not an integer"},
		{`{"ids": [1, 258]}`, "f:1: token 1 has id 258, the vocabulary has 258"},
		{`{"ids": [1, -1]}`, "f:1: token 1 has id -1"},
		{`{"ids": [1, 2], "labels": [1, 300]}`, "f:1: label 1 is 300"},
		{`{"ids": [1, 2], "labels": [1, -1]}`, "f:1: labels[1] is -1, use -100"},
		{`{"ids": [1, 2], "labels": [1]}`, "f:1: there are 2 ids and 1 labels"},
		{`{"ids": [1, 2], "loss_mask": [1]}`, "f:1: loss_mask is not a list as long as ids"},
		{`{"ids": [1, 2], "loss_mask": [1, 2]}`, "f:1: loss_mask[1] is neither"},
		{`{"ids": [1, 2], "loss_mask": [1, 0]}`, "f:1: there are no targets"},
		{`{"ids": [1, 2], "loss_mask": [], "labels": []}`, "f:1: there are both"},
		{`{"ids": [1]}`, "f:1: there are no targets"},
		{`{"ids": []}`, "f:1: there are no targets"},
	} {
		text, want := c[0], c[1]
		wantError(t, want, func() error {
			_, err := readJSONL("f", strings.NewReader(text), testOptions())
			return err
		})
	}
	o := testOptions()
	o.Template = nil
	wantError(t, "f:1: messages need a chat template", func() error {
		_, err := readJSONL("f", strings.NewReader(`{"messages": [{"role": "assistant", "content": "b"}]}`), o)
		return err
	})
}

// A template that writes the date is refused unless the date is given, or the line says it.
func TestJSONLDate(t *testing.T) {
	o := testOptions()
	o.Template = loadTestTemplate(t, "header.jinja")
	const line = `{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]`
	wantError(t, "f:1: header.jinja: line 15: strftime_now: there is no date here", func() error {
		_, err := readJSONL("f", strings.NewReader(line+"}"), o)
		return err
	})
	const want = "<s><|header|>system<|end|>\n\nToday: " +
		"%\n\n<|im_end|><|header|>user<|end|>\n\nA<|im_end|><|header|>assistant<|end|>\n\n[B<|im_end|>]"
	if got := samplesOf(t, line+`, "chat_template_kwargs": {"date_string": "D"}}`, o)[0]; got !=
		strings.ReplaceAll(want, "%", "D") {
		t.Errorf("%q", got)
	}
	o.Now = goldenTime
	if got := samplesOf(t, line+"}", o)[0]; got != strings.ReplaceAll(want, "%", "07 Mar 2026") {
		t.Errorf("%q", got)
	}
}

// A template whose generation prompt is not how it writes a turn cannot say what is learned.
func TestJSONLBrokenPrompt(t *testing.T) {
	o := testOptions()
	var err error
	o.Template, err = NewTemplate("T", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if "+
		"add_generation_prompt %}<bot>{% endif %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, "f:1: the chat template does not continue its own generation prompt at message 1", func() error {
		_, err := readJSONL("f", strings.NewReader(`{"messages": [{"role": "user", "content": "a"}, {"role": `+
			`"assistant", "content": "b"}]}`), o)
		return err
	})
}

func TestLoadJSONL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	if err := os.WriteFile(path, []byte("{\"prompt\": \"a\", \"completion\": \"b\"}\r\n{\"ids\": [1, 2]}"),
		0o600); err != nil {
		t.Fatal(err)
	}
	d, err := LoadJSONL(path, testOptions())
	if err != nil || d.Len() != 2 {
		t.Fatalf("%v", err)
	}
	wantError(t, "no such file", func() error { _, err := LoadJSONL(path+"x", testOptions()); return err })
}

// Whatever the text, reading it gives an error of one line or samples that hold together.
func FuzzJSONL(f *testing.F) {
	for _, s := range []string{
		`{"prompt": "1+1=", "completion": "2"}`, `{"ids": [97, 98], "labels": [-100, 98]}`,
		`{"ids": [97, 98], "loss_mask": [0, 1]}`, "\n", "{}", "[",
		`{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho", "tool_calls": ` +
			`[{"function": {"name": "f", "arguments": {"a": 1}}}]}, {"role": "tool", "content": "x"}], "tools": []}`,
		`{"ids": [97, 98], "weights": [0, 0.5], "x": {}}`,
		`{"messages": [{"role": "assistant", "content": "a", "weight": 0}, {"role": "assistant", "content": "b"}]}`,
		`{"prompt": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "completion": [{"role": ` +
			`"assistant", "content": "Ho"}]}`,
	} {
		f.Add(s)
	}
	o := testOptions()
	o.Template, o.Long, o.MaxRows = loadTestTemplate(f, "thinking.jinja"), LongTruncate, 50
	f.Fuzz(func(t *testing.T, text string) {
		d, err := readJSONL("f", strings.NewReader(text), o)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("%q", err)
			}
			return
		}
		for i := range d.Len() {
			s := d.Sample(i)
			if s.Weights != nil && len(s.Weights) != len(s.IDs) || !(s.Weight() > 0) {
				t.Fatalf("%v", s)
			}
			if n := len(s.IDs); n == 0 || n > o.MaxRows || n != len(s.Targets) || s.Targets[n-1] == noLabel {
				t.Fatalf("%v", s)
			}
		}
	})
}
