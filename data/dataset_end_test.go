package data

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/data/ordered"
	"lockstep/data/tokenizer"
)

// templateEnds are the ids at which models stop that come with the templates of testdata, by what their tokens say.
var templateEnds = map[string][]string{
	"content.jinja":         {"<|im_end|>"},
	"generation.jinja":      {"<|im_end|>"},
	"glm.jinja":             {"<|endoftext|>", "<|user|>", "<|observation|>"},
	"harmony.jinja":         {"<|return|>", "<|endoftext|>", "<|call|>"},
	"header.jinja":          {"<|im_end|>"},
	"roles.jinja":           {"[e~["},
	"template_chatml.jinja": {"<|im_end|>"},
	"thinking.jinja":        {"<|im_end|>", "<|endoftext|>"},
	"twice.jinja":           {"<|endoftext|>", "<|end|>", "<|assistant|>"},
}

// specialTexts are the special tokens of those templates.
var specialTexts = []string{
	"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>",
	"<|tool|>",
	"[gMASK]", "<sop>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>",
	"<|header|>", "]~b]", "[e~[", "<s>",
}

// templateOptions are those of a model with a template of testdata; completions end by the first of its ends.
func templateOptions(t testing.TB, name string) Options {
	t.Helper()
	l := tokenizer.NewBytes(specialTexts)
	o := Options{Codec: l, Template: loadTestTemplate(t, name), Vocab: l.Vocab(), MaxRows: 10000, Long: LongError}
	o.Now = goldenTime
	for _, text := range templateEnds[name] {
		id, ok := l.ID(text)
		if !ok {
			t.Fatalf("no token %s", text)
		}
		o.Stops = append(o.Stops, id)
	}
	if len(o.Stops) == 0 {
		t.Fatalf("%s: nothing ends its answers", name)
	}
	o.End = o.Stops[0]
	return o
}

// answers are the runs of targets of a sequence, as text, with their ends.
func (o Options) answers(q sequence) (list []string) {
	for i, l := range q.labels {
		if l == noLabel {
			continue
		}
		if i == 0 || q.labels[i-1] == noLabel {
			list = append(list, "")
		}
		list[len(list)-1] += o.Codec.Decode([]int32{l})
	}
	return list
}

// In every template, on every conversation, every answer is learned with the end that stops the model: the share is 1.
func TestEveryAnswerEnds(t *testing.T) {
	files, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, file := range append(files, "template_chatml.jinja") {
		name := filepath.Base(file)
		o := templateOptions(t, name)
		answers, ended := 0, 0
		for i, c := range conversations(t) {
			turns := len(assistantTurns(c.Messages, 0))
			if turns == 0 || c.Tools != nil && name == "template_chatml.jinja" { // it refuses tools
				continue
			}
			list, err := o.conversed(c, 0)
			if err != nil {
				t.Fatalf("%s, conversation %d: %v", name, i, err)
			}
			found := 0
			for _, q := range list {
				for _, a := range o.answers(q) {
					found++
					if slices.ContainsFunc(templateEnds[name], func(end string) bool {
						return strings.HasSuffix(a, end)
					}) {
						ended++
					} else {
						t.Errorf("%s, conversation %d: the answer %q has no end", name, i, a)
					}
				}
			}
			if found != turns {
				t.Errorf("%s, conversation %d: %d answers of %d", name, i, found, turns)
			}
			answers += turns
		}
		if answers == 0 || ended != answers {
			t.Errorf("%s: %d of %d answers end", name, ended, answers)
		}
		t.Logf("%s: %d of %d answers end in a target", name, ended, answers)
	}
}

// What is learned, to the token: the end of each family, that of a call of a tool, and nothing behind it.
func TestAnswerEnds(t *testing.T) {
	const call = `{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}`
	const tool = `{"role": "tool", "content": "R"}`
	a := func(text string) string { return fmt.Sprintf(`{"role": "assistant", "content": %q}`, text) }
	u := func(text string) string { return fmt.Sprintf(`{"role": "user", "content": %q}`, text) }
	for _, k := range []struct {
		template string
		messages []string
		want     []string // answers
	}{
		{"glm.jinja", []string{u("A"), a("B")}, []string{"\n<think></think>\nB<|user|>"}},
		{"glm.jinja", []string{u("A"), a("B"), u("C")}, []string{"\n<think></think>\nB<|user|>"}},
		{"glm.jinja", []string{u("A"), a("B"), u("C"), a("D")},
			[]string{"\n<think></think>\nB<|user|>", "\n<think></think>\nD<|user|>"}},
		{"glm.jinja", []string{u("A"), call}, []string{"\n<think></think>\n<tool_call>f</tool_call><|observation|>"}},
		{"glm.jinja", []string{u("A"), call, tool},
			[]string{"\n<think></think>\n<tool_call>f</tool_call><|observation|>"}},
		{"glm.jinja", []string{u("A"), call, tool, a("D")},
			[]string{"\n<think></think>\n<tool_call>f</tool_call><|observation|>", "\n<think></think>\nD<|user|>"}},
		{"harmony.jinja", []string{u("A"), a("B"), u("C"), a("D")},
			[]string{"<|channel|>final<|message|>B<|return|>", "<|channel|>final<|message|>D<|return|>"}},
		{"harmony.jinja", []string{u("A"), call},
			[]string{"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"}},
		{"roles.jinja", []string{u("A"), a("B")}, []string{"B[e~["}},
		{"twice.jinja", []string{u("A"), a("B")}, []string{"B<|end|>"}},
		{"content.jinja", []string{u("A"), a("B"), u("C"), a("D")}, []string{"B<|im_end|>", "D<|im_end|>"}},
		{"header.jinja", []string{u("A"), a("B")}, []string{"B<|im_end|>"}},
		{"thinking.jinja", []string{u("A"), a("B")}, []string{"<think>\n\n</think>\n\nB<|im_end|>"}},
		{"generation.jinja", []string{u("A"), a("B <|im_end|> C")}, []string{"B <|im_end|> C<|im_end|>"}},
	} {
		o := templateOptions(t, k.template)
		list, err := o.conversed(chatOf(t, k.messages), 0)
		if err != nil {
			t.Fatalf("%s: %v", k.template, err)
		}
		var got []string
		for _, q := range list {
			got = append(got, o.answers(q)...)
		}
		if !slices.Equal(got, k.want) {
			t.Errorf("%s %s: learns %q, want %q", k.template, k.messages, got, k.want)
		}
	}
}

func chatOf(t testing.TB, messages []string) Chat {
	t.Helper()
	v, err := ordered.Decode([]byte("[" + strings.Join(messages, ", ") + "]"))
	if err != nil {
		t.Fatal(err)
	}
	return Chat{Messages: v.([]any)}
}

// Behind an answer whose end a model does not stop at the run stops, with the template's name, but where that is
// allowed.
func TestNoEnd(t *testing.T) {
	user, reply := `{"role": "user", "content": "A"}`, `{"role": "assistant", "content": "B"}`
	const each, said1 = "{% for m in messages %}",
		"{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
	const marked = "<|{{ m.role }}|>{{ m.content }}{% endfor %}{{ '<|assistant|>' if add_generation_prompt"
	for _, k := range []struct {
		source   string
		messages []string
		want     string // of the error
		answers  []string
	}{
		{each + "### {{ m.role }}:\n{{ m.content }}\n{% endfor %}{{ '### assistant:\n' if add_generation_prompt }}",
			[]string{user, reply},
			`plain: no answer ends with one of ["<|endoftext|>"], "### user:\nb\n" follows "B\n"`, []string{"B\n"}},
		{each + marked + " }}", []string{user, reply},
			`plain: no answer ends with one of ["<|endoftext|>"], "<|user|>b" follows`, []string{"B"}},
		{each + marked + " else '<|endoftext|>' }}", []string{user, reply, user}, "", []string{"B<|endoftext|>"}},
		{each +
			"{{ m.role }}: {{ m.content }} {{ '<|endoftext|>' if loop.last and m.role == 'assistant' }}{% endfor %}" +
			"{{ 'assistant: ' if add_generation_prompt }}",
			[]string{user, reply, user, reply}, "", []string{"B <|endoftext|>", "B <|endoftext|>"}},
		{each + "{{ m.role }}: " + said1 + "{% else %}{{ m.content }}{% endif %}{{ '\n' }}{% endfor %}<|endoftext|>",
			[]string{user, reply, user, reply}, `"\nuser: A\nassistant: " follows`, []string{"B", "B\n<|endoftext|>"}},
		{each + said1 + ", {% generation %}yes<|endoftext|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% " +
			"endfor %}",
			[]string{user, reply}, "", []string{"B", "yes<|endoftext|>"}},
	} {
		o := templateOptions(t, "twice.jinja")
		o.Stops = nil // but <|endoftext|>
		var err error
		if o.Template, err = NewTemplate("plain", k.source, nil); err != nil {
			t.Fatal(err)
		}
		c := chatOf(t, k.messages)
		if k.want != "" {
			wantError(t, k.want, func() error { _, err := o.conversed(c, 0); return err })
			o.NoEnd = true
		}
		list, err := o.conversed(c, 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, q := range list {
			got = append(got, o.answers(q)...)
		}
		if !slices.Equal(got, k.answers) {
			t.Errorf("%s: learns %q, want %q", k.source, got, k.answers)
		}
	}
	o := templateOptions(t, "glm.jinja")
	o.End, o.Stops = -1, nil
	wantError(t, "glm.jinja: this model has no end-of-sequence token", func() error {
		_, err := o.conversed(chatOf(t, []string{user, reply}), 0)
		return err
	})
	wantError(t, "this model has no end-of-sequence token", func() error {
		_, err := o.continued("a", "b")
		return err
	})
}

// Goldens are what the templates of testdata render to; none is missing.
func TestTemplatesHaveGoldens(t *testing.T) {
	text, err := os.ReadFile("testdata/templates/golden.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for name := range templateEnds {
		if n := strings.Count(string(text), `"template": "`+name+`"`); n != 12 {
			t.Errorf("%s has %d goldens", name, n)
		}
	}
}

// A generation block that begins just where the prompt ends is the completion's; those before are the prompt's.
func TestMarkedPrompt(t *testing.T) {
	o := testOptions()
	var err error
	o.Template, err = NewTemplate("t",
		"{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>"+
			"{% endgeneration %}{% else %}{{ m.content }}:{% endif %}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	const line = `{"prompt": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": ` +
		`"user", "content": "C"}], ` +
		`"completion": [{"role": "assistant", "content": "D"}]}`
	if got, want := samplesOf(t, line, o), "A:B<|im_end|>C:[D<|im_end|>]"; len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A conversation is one sample only where each of its answers, the first and the last too, stands unchanged in the next
// prompt; else each answer has its own, with what the model reads in serving.
func TestEarlierAnswersRewritten(t *testing.T) {
	o := testOptions()
	var err error
	o.Template, err = NewTemplate("t", "{% for m in messages %}{{ m.content }}{{ '!' if m.name and loop.last }}"+
		"{{ '<|im_end|>' if m.role == 'assistant' else ':' }}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []struct {
		loud int // the answer that is written otherwise where it is the last
		want []string
	}{
		{0, []string{"A:[B!<|im_end|>]", "A:B<|im_end|>C:[D<|im_end|>]", "A:B<|im_end|>C:D<|im_end|>E:[F<|im_end|>]"}},
		{1, []string{"A:[B<|im_end|>]", "A:B<|im_end|>C:[D!<|im_end|>]", "A:B<|im_end|>C:D<|im_end|>E:[F<|im_end|>]"}},
		{2, []string{"A:[B<|im_end|>]C:[D<|im_end|>]E:[F!<|im_end|>]"}},
		{3, []string{"A:[B<|im_end|>]C:[D<|im_end|>]E:[F<|im_end|>]"}},
	} {
		var messages []string
		for i, text := range []string{"A", "B", "C", "D", "E", "F"} {
			role, name := "user", ""
			if i%2 == 1 {
				role = "assistant"
				if i/2 == k.loud {
					name = `, "name": "x"`
				}
			}
			messages = append(messages, fmt.Sprintf(`{"role": %q, "content": %q%s}`, role, text, name))
		}
		if got := samplesOf(t, `{"messages": [`+strings.Join(messages, ", ")+`]}`, o); !slices.Equal(got, k.want) {
			t.Errorf("answer %d is written otherwise: %q, want %q", k.loud, got, k.want)
		}
	}
}

// A sample is shown as it is learned, whatever a run of tokens loses in the middle.
func TestMarked(t *testing.T) {
	s := Sample{IDs: byteCodec{}.Encode("prompt\x1b"), Targets: []int32{-1, -1, 'm', 'p', -1, '9', imEnd}}
	m := Marks{"<", ">"}
	if got, want := s.Marked(byteCodec{}, m, 0), "pro<mp>t<9<|im_end|>>"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	long := Sample{IDs: byteCodec{}.Encode("abcdefgh"), Targets: byteCodec{}.Encode("bcdefghi")}
	long.Targets[0], long.Targets[1] = -1, -1
	if got, want := long.Marked(byteCodec{}, m, 4), "abc<de ... hi>"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (Sample{IDs: []int32{'a'}, Targets: []int32{'\r'}}).Marked(byteCodec{}, m, 0); got != "a<\\x0d>" {
		t.Errorf("%q", got)
	}
}

// The template that is saved with a model renders what the default one does, and the same tokens are learned by it.
func TestSavedTemplate(t *testing.T) {
	plain := templateOptions(t, "template_chatml.jinja")
	saved := plain
	saved.Template = loadTestTemplate(t, "template_chatml_saved.jinja")
	compared := 0
	for i, c := range conversations(t) {
		if c.Tools != nil || len(assistantTurns(c.Messages, 0)) == 0 {
			continue
		}
		for _, prompt := range []bool{false, true} {
			a, err := plain.Template.Render(t.Context(), c, prompt, time.Time{})
			b, again := saved.Template.Render(t.Context(), c, prompt, time.Time{})
			if err != nil || again != nil || a != b {
				t.Errorf("conversation %d: %q, want %q (%v, %v)", i, b, a, err, again)
			}
		}
		want, err := plain.conversed(c, 0)
		got, again := saved.conversed(c, 0)
		if err != nil || again != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("conversation %d: %+v, want %+v (%v, %v)", i, got, want, err, again)
		}
		compared++
	}
	if compared == 0 {
		t.Error("no conversation was compared")
	}
}
