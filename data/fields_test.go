package data

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Weights of tokens stand where the ids stand: weights[i] weighs the row that predicts token i, and weights[0] none.
func TestTokenWeights(t *testing.T) {
	for _, k := range []struct {
		line, want string
		weights    string
	}{
		{`{"ids": [97, 98, 99, 100], "weights": [1, 1, 1, 1]}`, "a[bcd]", "[]"},
		{`{"ids": [97, 98, 99, 100], "weights": [0, 0, 1, 1.0]}`, "ab[cd]", "[]"},
		{`{"ids": [97, 98, 99, 100], "weights": [9, 0, 0.5, 2]}`, "ab[cd]", "[0 0.5 2]"},
		{`{"ids": [97, 98, 99, 100], "weights": [1, 3, 0.25, 0]}`, "a[bc]", "[3 0.25]"},
		{`{"ids": [97, 98, 99, 100], "labels": [-100, -100, 99, 100], "weights": [7, 7, 2, 1]}`, "ab[cd]", "[7 2 1]"},
		{`{"ids": [97, 98, 99], "weights": null}`, "a[bc]", "[]"},
	} {
		d, err := readJSONL("f", strings.NewReader(k.line), testOptions())
		if err != nil {
			t.Fatalf("%s: %v", k.line, err)
		}
		s := d.Sample(0)
		if got := show(t, s); got != k.want || fmt.Sprint(s.Weights) != k.weights {
			t.Errorf("%s gives %q with weights %v, want %q with %s", k.line, got, s.Weights, k.want, k.weights)
		}
		sum := 0.0
		for i, target := range s.Targets {
			if target >= 0 {
				sum += map[bool]float64{true: 1}[s.Weights == nil]
				if s.Weights != nil {
					sum += float64(s.Weights[i])
				}
			}
		}
		if s.Weight() != sum {
			t.Errorf("%s weighs %g, want %g", k.line, s.Weight(), sum)
		}
	}
	o := testOptions()
	o.MaxRows, o.Long = 2, LongTruncate
	d, err := readJSONL("f", strings.NewReader(`{"ids": [97, 98, 99, 100], "weights": [1, 0.5, 2, 4]}`), o)
	if err != nil || !slices.Equal(d.Sample(0).Weights, []float32{0.5, 2}) {
		t.Errorf("cut: %v, %v", d, err)
	}
	digests := map[uint64]bool{}
	for _, w := range []string{"1, 1", "1, 2", "1, 3", "1, 0.5"} {
		d, err := readJSONL("f", strings.NewReader(`{"ids": [97, 98, 99], "weights": [0, `+w+`]}`), testOptions())
		if err != nil {
			t.Fatal(err)
		}
		digests[d.Digest()] = true
	}
	if len(digests) != 4 {
		t.Error("other weights have the same digest")
	}
	for weights, want := range map[string]string{
		`[1, 1]`:                            "weights is not a list as long as ids",
		`3`:                                 "weights is not a list",
		`[1, -1, 1]`:                        "weights[1] is not a number of at least 0",
		`[1, "x", 1]`:                       "weights[1] is not a number",
		`[1, 1e39, 1]`:                      "weights[1] is not a number",
		`[0, 0, 0]`:                         "there are no targets",
		`[1, 1, 1], "loss_mask": [1, 1, 1]`: "there are both weights and loss_mask",
		`[1, 1, 1], "labels": [1]`:          "weights is not a list as long as ids",
	} {
		wantError(t, "f:1: "+want, func() error {
			_, err := readJSONL("f", strings.NewReader(`{"ids": [97, 98, 99], "weights": `+weights+`}`), testOptions())
			return err
		})
	}
}

// An assistant message of weight 0 is read and not learned, in every form of data and by every way to cut a template.
func TestMessageWeights(t *testing.T) {
	const u, a1, a0, b = `{"role": "user", "content": "Hi"}`, `{"role": "assistant", "content": "Ho", "weight": 1}`,
		`{"role": "assistant", "content": "Ho", "weight": 0}`, `{"role": "assistant", "content": "Ha"}`
	const hi = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
	o := testOptions()
	for line, want := range map[string]string{
		`{"messages": [` + u + `, ` + a1 + `]}`: hi +
			"[Ho<|im_end|>]",
		`{"messages": [` + u + `, ` + a0 + `, ` + u + `, ` + b + `]}`: hi +
			"Ho<|im_end|>\n" + hi + "[Ha<|im_end|>]",
		`{"messages": [` + u + `, ` + b + `, ` + u + `, ` + a0 + `]}`: hi +
			"[Ha<|im_end|>]",
		`{"messages": [` + u + `, ` + a1 + `, ` + u + `, ` + a0 + `, ` + u + `, ` + b + `]}`: hi +
			"[Ho<|im_end|>]\n" + hi + "Ho<|im_end|>\n" + hi + "[Ha<|im_end|>]",
		`{"prompt": [` + u + `], "completion": [` + a0 + `, ` + u + `, ` + b + `]}`: hi +
			"Ho<|im_end|>\n" + hi + "[Ha<|im_end|>]",
		`{"messages": [{"role": "user", "content": "Hi", "weight": 0}, ` + a1 + `]}`: hi +
			"[Ho<|im_end|>]",
		`{"messages": [` + u + `, {"role": "assistant", "content": "Ho", "weight": 0.0}, ` + u + `, ` + b + `]}`: hi +
			"Ho<|im_end|>\n" + hi + "[Ha<|im_end|>]",
	} {
		if got := samplesOf(t, line, o); len(got) != 1 || got[0] != want {
			t.Errorf("%s\ngives %q\nwant  %q", line, got, want)
		}
	}
	o.Template = loadTestTemplate(t, "generation.jinja")
	line := `{"messages": [` + u + `, ` + a0 + `, ` + u + `, ` + b + `]}`
	want := "<s>[user]Hi[assistant]Ho<|im_end|>[user]Hi[assistant][Ha<|im_end|>]"
	if got := samplesOf(t, line, o); len(got) != 1 || got[0] != want {
		t.Errorf("by generation blocks: %q", got)
	}
	o.Template = loadTestTemplate(t, "thinking.jinja")
	want = "assistant\n[<think>\n\n</think>\n\nHa<|im_end|>]"
	if got := samplesOf(t, line, o); len(got) != 1 || !strings.HasSuffix(got[0], want) {
		t.Errorf("a sample for each answer: %q", got)
	}
	p := preferencesOf(t, `{"prompt": [`+u+`], "chosen": [`+a0+`, `+u+`, `+b+`], "rejected": [`+a1+`]}`, pairOptions())
	if got, want := showPair(t, p, 0), hi+"Ho<|im_end|>\n"+hi+"[Ha<|im_end|>] | "+hi+"[Ho<|im_end|>]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for line, want := range map[string]string{
		`{"messages": [` + u + `, ` + a0 + `]}`: "no assistant message to " +
			"learn from",
		`{"messages": [` + u + `, {"role": "assistant", "content": "a", "weight": 0.5}]}`: "messages[1]: the weight " +
			"of a message is 0 or 1",
		`{"messages": [` + u + `, {"role": "assistant", "content": "a", "weight": "1"}]}`: "messages[1]: the weight " +
			"of a message is 0 or 1",
		`{"messages": [{"role": "user", "content": "a", "weight": 1}, ` + a1 + `]}`: "messages[0]: the weight " +
			"of a message of the role user is 1",
		`{"prompt": [` + u + `, ` + a1 + `, ` + u + `], "completion": [` + a1 + `]}`: "prompt[1]: the weight of " +
			"a message of the prompt is 1",
	} {
		wantError(t, "f:1: "+want, func() error {
			_, err := readJSONL("f", strings.NewReader(line), testOptions())
			return err
		})
	}
	o.Template, _ = NewTemplate("t", "{% generation %}a<|im_end|>{% endgeneration %}", nil)
	wantError(t, "f:1: the chat template marks 1 pieces of 2 assistant messages", func() error {
		_, err := readJSONL("f", strings.NewReader(line), o)
		return err
	})
}

// A field that means something elsewhere is refused with its line, in every kind of data.
func TestElsewhereIsRefused(t *testing.T) {
	const ids, text = `{"ids": [1, 2]`, `{"prompt": "a", "completion": "b"`
	const chat = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]`
	const pair = `{"prompt": "a", "chosen": "b", "rejected": "c"`
	readers := map[string]func(line string) error{
		"samples": func(line string) error {
			_, err := readJSONL("f", strings.NewReader(text+"}\n"+line), testOptions())
			return err
		},
		"pairs": func(line string) error {
			_, err := readPreferences("f", strings.NewReader(pair+"}\n"+line), pairOptions())
			return err
		},
		"questions": func(line string) error {
			_, err := readQuestions("f", strings.NewReader(`{"prompt": "a"}`+"\n"+line), testOptions())
			return err
		},
	}
	for _, k := range []struct{ kind, line, want string }{
		{"samples", ids + `, "weight": 2}`, "weight"},
		{"samples", text + `, "weights": [1]}`, "weights"},
		{"samples", chat + `, "labels": [1]}`, "labels"},
		{"samples", chat + `, "loss_mask": [1]}`, "loss_mask"},
		{"samples", chat + `, "images": ["x.png"]}`, "images"},
		{"samples", text + `, "audio": {}}`, "audio"},
		{"samples", text + `, "label": true}`, "label"},
		{"samples", chat + `, "functions": []}`, "functions"},
		{"samples", ids + `, "attention_mask": [1, 1]}`, "attention_mask"},
		{"samples", chat + `, "system": "x"}`, "system"},
		{"samples", chat + `, "documents": []}`, "documents"},
		{"samples", ids + `, "target_tokens": [2]}`, "target_tokens"},
		{"pairs", pair + `, "margin": 0.5}`, "margin"},
		{"pairs", pair + `, "weight": 2}`, "weight"},
		{"pairs", pair + `, "images": []}`, "images"},
		{"pairs", `{"prompt_ids": [1], "chosen_ids": [1], "rejected_ids": [2], "weights": [1]}`, "weights"},
		{"pairs", `{"input": {"messages": [{"role": "user", "content": "a"}], "audio": 1}, "preferred_output": "b", ` +
			`"non_preferred_output": "c"}`, "audio"},
		{"questions", `{"prompt": "a", "label": "x"}`, "label"},
		{"questions", `{"ids": [1], "weights": [1]}`, "weights"},
		{"questions", `{"prompt": "a", "images": []}`, "images"},
	} {
		wantError(t, "f:2: "+k.want+" is not supported here, ", func() error { return readers[k.kind](k.line) })
	}
	for key := range elsewhereInMessages {
		const line = `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", ` +
			`%q: false}]}`
		wantError(t, "f:2: messages[1]: "+key+" is not supported here, ", func() error {
			return readers["samples"](fmt.Sprintf(line, key))
		})
	}
	o := testOptions()
	o.Judged = true
	if q := questionsOf(t, `{"prompt": "a", "label": "x", "weight": 3, "y": 1}`, o); len(q.Ignored) != 0 {
		t.Errorf("what a program judges by is ignored: %q", q.Ignored)
	}
	wantError(t, "f:1: images is not supported here", func() error {
		_, err := readQuestions("f", strings.NewReader(`{"prompt": "a", "images": []}`), o)
		return err
	})
}

// Other fields that nothing reads are named once, with their first line; null is none, and what the template reads is
// read.
func TestIgnoredFields(t *testing.T) {
	const chat = `{"messages": [{"role": "user", "content": "a", "name": "x"}, ` +
		`{"role": "assistant", "content": "b", "note": 1, "bos_token": 1}], "id": 1}`
	lines := []string{`{"prompt": "a", "completion": "b", "images": null}`, chat, chat}
	o := testOptions()
	o.Template = loadTestTemplate(t, "generation.jinja")
	d, err := readJSONL("f", strings.NewReader(strings.Join(lines, "\n")), o)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"f:2: field messages.note is ignored", "f:2: field id is ignored"}; !slices.Equal(d.Ignored,
		want) {
		t.Errorf("%q, want %q", d.Ignored, want)
	}
	p := preferencesOf(t, `{"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 1}`, pairOptions())
	if want := []string{"f:1: field score_chosen is ignored"}; !slices.Equal(p.Ignored, want) {
		t.Errorf("%q, want %q", p.Ignored, want)
	}
	q := questionsOf(t, `{"prompt": "a", "answer": "b", "level": 1}`, testOptions())
	if want := []string{"f:1: field level is ignored"}; !slices.Equal(q.Ignored, want) {
		t.Errorf("%q, want %q", q.Ignored, want)
	}
}
