package toolcalls

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"lockstep/data/ordered"
)

const toolsJSON = `[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", ` +
	`"properties": {
	"city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}, "share": {"type": "number"},
	"at": {"type": "array"}, "more": {"type": "object"}, "none": {"type": ["number", "null"]},
	"either": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "unit": {"enum": ["C", "F"]}}}}}, {"name": "bare"}]`

func testTools(t testing.TB) Tools {
	t.Helper()
	list, err := ordered.Decode([]byte(toolsJSON))
	if err != nil {
		t.Fatal(err)
	}
	return ReadTools(list)
}

// whole reads a text in pieces.
func whole(o Options, pieces ...string) (d Delta) {
	p := NewParser(o)
	for _, piece := range pieces {
		d.Add(p.Add(piece))
	}
	d.Add(p.End())
	return d
}

const xmlArgs = `{"city": "Bern & \"<b>\"", "days": 2, "exact": true, "share": 0.5, "at": [1, 2], "more": {"a": ` +
	`"b"}, ` +
	`"none": null, "either": 7, "unit": "5", "free": 3}`

// xmlValues are the values of xmlArgs as templates write them.
var xmlValues = [][2]string{{"city", `Bern & "<b>"`}, {"days", "2"}, {"exact", "True"}, {"share", "0.5"},
	{"at", "[1, 2]"}, {"more", `{"a": "b"}`}, {"none", "null"}, {"either", "7"}, {"unit", "5"}, {"free", "3"}}

func xml(begin, keyEnd, end string) string {
	var b strings.Builder
	for _, v := range xmlValues {
		b.WriteString(begin + v[0] + keyEnd + v[1] + end)
	}
	return b.String()
}

// answers are what models write, and what it means.
var answers = []struct {
	name   string
	format Format
	text   string
	want   Delta
}{
	{"text alone", Hermes, " No call.\n\n ", Delta{Content: " No call.\n\n "}},
	{"one call", Hermes, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern " +
		"</tool_call>\"}}\n</tool_call>",
		Delta{Calls: []Call{{"", "weather", `{"city": "Bern </tool_call>"}`}}}},
	{"text, calls, text", Hermes, "Let me look.\n<tool_call>\n{\"name\": " +
		"\"bare\"}\n</tool_call>\n<tool_call>{\"arguments\":" +
		" \"{\\\"a\\\":1}\", \"name\":\"x\"}</tool_call>\nDone.\n", Delta{Content: "Let me look.\nDone.\n",
		Calls: []Call{{"", "bare", "{}"}, {"", "x", `{"a":1}`}}}},
	{"thinking", Hermes, "\n<think>\na <tool_call> b\n</think>\n\nHm.<tool_call>{\"name\": \"bare\"}</tool_call>\n",
		Delta{Reasoning: "a <tool_call> b", Content: "Hm.", Calls: []Call{{"", "bare", "{}"}}}},
	{"the last mark ends the answer", Hermes, "<tool_call>\n{\"name\": \"bare\", \"arguments\": {}}\n",
		Delta{Calls: []Call{{"", "bare", "{}"}}}},
	{"cut off", Hermes, "A <tool_call>\n{\"name\": \"bare\", \"argum",
		Delta{Content: "A <tool_call>\n{\"name\": \"bare\", \"argum"}},
	{"no JSON", Hermes, "<tool_call>bare()</tool_call> <tool_call>{\"name\": \"bare\"}</tool_call>", Delta{
		Content: "<tool_call>bare()</tool_call>", Calls: []Call{{"", "bare", "{}"}}}},
	{"arguments that are none", Hermes, `<tool_call>{"name": "bare", "arguments": [1]}</tool_call>`,
		Delta{Content: `<tool_call>{"name": "bare", "arguments": [1]}</tool_call>`}},
	{"XML", QwenXML, "I look.\n\n<tool_call>\n<function=weather>\n" + xml("<parameter=", ">\n", "\n</parameter>\n") +
		"</function>\n</tool_call>", Delta{Content: "I look.", Calls: []Call{{"", "weather", xmlArgs}}}},
	{"XML without its outer mark", QwenXML, "<function=bare></function>\n</tool_call>\n<function=bare></function> x",
		Delta{Content: " x", Calls: []Call{{"", "bare", "{}"}, {"", "bare", "{}"}}}},
	{"XML with marks in a value", QwenXML, "<tool_call><function=weather><parameter=city>\na</parameter> " +
		"b\n</parameter>" +
		"</function></tool_call>", Delta{Calls: []Call{{"", "weather", `{"city": "a</parameter> b"}`}}}},
	{"XML that is not parsed", QwenXML, "<tool_call>\n<function=weather>\n<param=x>\n</function>\n</tool_call>",
		Delta{Content: "<tool_call>\n<function=weather>\n<param=x>\n</function>\n</tool_call>"}},
	{"GLM", GLM, "\n<think></think>\nI look.\n<tool_call>weather\n" + xml("<arg_key>", "</arg_key>\n<arg_value>",
		"</arg_value>\n") + "</tool_call>\n<tool_call>bare</tool_call>",
		Delta{Content: "I look.", Calls: []Call{{"", "weather", xmlArgs}, {"", "bare", "{}"}}}},
	{"GLM cut off", GLM, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n", Delta{
		Content: "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n"}},
	{"MiniMax", MiniMax, "Yes.\n<minimax:tool_call>\n<invoke name=\"weather\">\n" + xml(`<parameter name="`, `">`,
		"</parameter>\n") + "</invoke>\n<invoke name=\"bare\">\n</invoke>\n</minimax:tool_call>",
		Delta{Content: "Yes.", Calls: []Call{{"", "weather", xmlArgs}, {"", "bare", "{}"}}}},
	{"Kimi", Kimi, "Yes.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin" +
		"|>" +
		`{"city": "<|tool_call_end|>"}<|tool_call_end|><|tool_call_begin|>functions.a.b:1<|tool_call_argument_begin|>` +
		"{}<|tool_call_end|><|tool_calls_section_end|>", Delta{Content: "Yes.", Calls: []Call{{"functions.weather:0",
		"weather", `{"city": "<|tool_call_end|>"}`}, {"functions.a.b:1", "a.b", "{}"}}}},
	{"DeepSeek V3.1", DeepSeek, "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bern\"}" +
		"<｜tool▁call▁end｜><｜tool▁call▁begin｜>bare<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
		Delta{Content: "Yes.", Calls: []Call{{"", "weather", `{"city": "Bern"}`}, {"", "bare", "{}"}}}},
	{"DeepSeek " +
		"V3", DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": " +
		"\"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁calls▁end｜>", Delta{Calls: []Call{{"", "weather", `{"city": "` +
		"```\"}"}}}},
	{"Llama", Llama, `{"name": "weather", "parameters": {"city": "}"}}; {"name": "bare", "parameters": {}}` + "\n",
		Delta{Calls: []Call{{"", "weather", `{"city": "}"}`}, {"", "bare", "{}"}}}},
	{"Llama's tag", Llama, `<|python_tag|>{"name": "bare", "parameters": {}} and text`,
		Delta{Content: " and text", Calls: []Call{{"", "bare", "{}"}}}},
	{"JSON that is no call", Llama, `{"name": "bare", "a": {}}; {"name": "bare", "parameters": {}}`,
		Delta{Content: `{"name": "bare", "a": {}}; {"name": "bare", "parameters": {}}`}},
	{"code of Llama's tag", Llama, "<|python_tag|>print(1)\n", Delta{Content: "<|python_tag|>print(1)\n"}},
	{"harmony", Harmony, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>So." +
		"<|end|><|start|>assistant<|channel|>commentary<|message|>I " +
		"look.<|end|><|start|>assistant<|channel|>commentary " +
		"to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\"}", Delta{Reasoning: "Hm.\nSo.",
		Content: "I look.", Calls: []Call{{"", "weather", `{"city": "Bern"}`}}}},
	{"harmony with several calls", Harmony, " to=functions.bare<|channel|>commentary " +
		"json<|message|>{}<|call|><|start|>" +
		"assistant to=functions.x<|channel|>commentary<|message|>{\"a\": 1}<|call|>", Delta{Calls: []Call{
		{"", "bare", "{}"}, {"", "x", `{"a": 1}`}}}},
	{"harmony's answer", Harmony, "<|channel|>final<|message|> 2 <| 3\n<|return|>", Delta{Content: " 2 <| 3\n"}},
	{"harmony without headers", Harmony, "Just text, a <|message|> too.",
		Delta{Content: "Just text, a <|message|> too."}},
	{"harmony's unknown tool", Harmony, "<|channel|>commentary to=browser.open<|message|>{}<|call|><|start|>assistant" +
		"<|channel|>final<|message|>x", Delta{Content: "<|channel|>commentary to=browser.open<|message|>{}<|call|>x"}},
	{"harmony cut off", Harmony, "<|channel|>commentary to=functions.bare<|message|>{\"a\"", Delta{
		Content: "<|channel|>commentary to=functions.bare<|message|>{\"a\""}},
}

func options(t testing.TB, f Format) Options {
	return Options{Format: f, Tools: testTools(t), Calls: true, Reasoning: true, Thinking: MayThink}
}

// Every answer is read, whole, byte by byte, and in random pieces.
func TestAnswers(t *testing.T) {
	for _, a := range answers {
		o := options(t, a.format)
		got := whole(o, a.text)
		if !reflect.DeepEqual(got, a.want) {
			t.Errorf("%s: got %+q, want %+q", a.name, got, a.want)
		}
		checkPieces(t, o, a.text, 20)
	}
}

// checkPieces reads a text byte by byte and in random pieces, which has to give the same as reading it whole.
func checkPieces(t *testing.T, o Options, text string, times uint64) {
	t.Helper()
	want := whole(o, text)
	if got := whole(o, strings.Split(text, "")...); !reflect.DeepEqual(got, want) {
		t.Fatalf("%v: %q\nletter by letter %+q\nwhole %+q", o.Format, text, got, want)
	}
	for seed := range times {
		draw := rand.New(rand.NewPCG(seed, 1))
		var pieces []string
		for rest := text; rest != ""; {
			n := 1 + draw.IntN(min(len(rest), 1+draw.IntN(30)))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := whole(o, pieces...); !reflect.DeepEqual(got, want) {
			t.Fatalf("%v: in %q\ngot   %+q\nwhole %+q", o.Format, pieces, got, want)
		}
	}
}

// words are what random texts are made of.
var words = append(strings.Split("{ } : ; , \" \\ \n | < > </ 1 a bare weather city true null functions.bare:0 "+
	"<think> </think> "+
	"<tool_call> </tool_call> <function= </function> <parameter= </parameter> <arg_key> </arg_key> <arg_value> "+
	"</arg_value> "+
	"<minimax:tool_call> </minimax:tool_call> </invoke> <|python_tag|> <|tool_calls_section_begin|> "+
	"<|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|> <|start|> "+
	"<|channel|> "+
	"<|message|> <|end|> <|call|> <|return|> analysis commentary final assistant <｜tool▁calls▁begin｜> "+
	"<｜tool▁calls▁end｜> "+
	"<｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> ```json ```", " "), " ", "\n\n", " to=functions.bare",
	`<invoke name="bare">`, `<parameter name="city">`, `{"name": "bare", "arguments": {}}`, `{"name": "bare"}`,
	`{"name": "bare", "parameters": {"a": "}"}}`, "<function=bare>", "<parameter=city>", "<arg_key>city</arg_key>",
	"<|channel|>final<|message|>", "<|channel|>commentary to=functions.bare<|message|>", "{}")

// Random texts of marks are read the same in any pieces, and what has no call and no thinking is content to the byte.
func TestRandomTexts(t *testing.T) {
	draw := rand.New(rand.NewPCG(7, 7))
	called := 0
	for range 3000 {
		a := answers[draw.IntN(len(answers))]
		text, o := a.text, options(t, a.format)
		if draw.IntN(2) == 0 {
			text = text[:draw.IntN(len(text)+1)]
		}
		at := draw.IntN(len(text) + 1)
		var b strings.Builder
		for range draw.IntN(12) {
			b.WriteString(words[draw.IntN(len(words))])
		}
		text = strings.ToValidUTF8(text[:at]+b.String()+text[at:], "")
		if draw.IntN(2) == 0 {
			o.Format = Format(draw.IntN(int(Llama) + 1))
		}
		o.Reasoning, o.Thinking = draw.IntN(2) == 0, Thinking(draw.IntN(3))
		o.First = draw.IntN(4) == 0
		checkPieces(t, o, text, 3)
		if d := whole(o, text); len(d.Calls) > 0 {
			called++
		} else if !o.Reasoning && o.Format != Harmony && d.Content != text {
			t.Fatalf("%v: %q became %q", o.Format, text, d.Content)
		}
		if o.Calls = false; !o.Reasoning && o.Format != Harmony && whole(o, text).Content != text {
			t.Fatalf("%v without calls: %q became %q", o.Format, text, whole(o, text).Content)
		}
	}
	if called < 200 {
		t.Errorf("%d texts have calls", called)
	}
}

// A block that never ends takes time in proportion to its length, however many ends it seems to have.
func TestLongBlocks(t *testing.T) {
	piece := "</tool_call></function></parameter>}" + strings.Repeat("<tool_call>{", 3)
	for _, begin := range []string{`<tool_call>{"name": "bare", "arguments": {"a": "`,
		"<function=bare><parameter=city>", "<tool_call>bare<arg_key>"} {
		for f := range Llama + 1 {
			p, n := NewParser(options(t, f)), 0
			n += len(p.Add(begin).Content)
			for range 20_000 {
				n += len(p.Add(piece).Content)
			}
			if n += len(p.End().Content); n != len(begin)+20_000*len(piece) {
				t.Errorf("%v: %d bytes", f, n)
			}
		}
	}
}

// A call is told as soon as its block ends, and text before a block at once.
func TestPromptness(t *testing.T) {
	p := NewParser(options(t, QwenXML))
	for _, step := range []struct {
		text string
		want string
	}{
		{"Look.", "{Look.  []}"}, {"\n\n<tool", "{  []}"}, {"_call>\n<function=weather>\n", "{  []}"},
		{"<parameter=city>\n" + strings.Repeat("Bern ", 100) + "\n</parameter>\n</function>\n</tool_", "{  []}"},
		{"call>", `{  [{ weather {"city": "` + strings.Repeat("Bern ", 100) + `"}}]}`}, {" <f", "{  []}"}, {"x",
			"{ <fx  []}"},
	} {
		if got := fmt.Sprint(p.Add(step.text)); got != step.want {
			t.Errorf("%q: got %s, want %s", step.text, got, step.want)
		}
	}
}

func FuzzPieces(f *testing.F) {
	for _, a := range answers {
		f.Add(a.text, uint8(a.format), uint8(1))
	}
	f.Fuzz(func(t *testing.T, text string, format, flags uint8) {
		o := options(t, Format(format%uint8(Llama+1)))
		o.Reasoning, o.Thinking = flags&1 != 0, Thinking(flags>>1%3)
		checkPieces(t, o, strings.ToValidUTF8(text, ""), 2)
	})
}
