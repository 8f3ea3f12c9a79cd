package data

import (
	"strings"
	"testing"
	"time"

	"lockstep/data/ordered"
)

// called are messages as OpenAI's clients send them back: an assistant's calls with JSON texts for arguments.
const called = `{"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": null, ` +
	`"tool_calls": [` +
	`{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\":\"x\",\"a\":[1,2]}"}},` +
	`{"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}}]},` +
	`{"role": "tool", "tool_call_id": "1", "content": "r"}, {"role": "assistant", "content": "done", "tool_calls": ` +
	`null}]}`

// Arguments are what a template wants: an object that it prints item by item or as JSON, the text that it asks for,
// or a text that it adds to others; content that is null is a text where null fails.
func TestToolCallsInMessages(t *testing.T) {
	const items = "{% for k, v in c.function.arguments | items %}{{ k }},{% endfor %};"
	const each = "{% for m in messages %}{% if 'tool_calls' in m %}{% for c in m.tool_calls %}"
	const end = "{% endfor %}{% endif %}{% endfor %}"
	for source, want := range map[string]string{
		each + "{{ c.function.arguments | tojson }};" + end: `{"b": "x", "a": [1, 2]};{};`,
		each + items + end: "b,a,;;",
		each + "{{ c.function.name + c.function.arguments }};" + end: `f{"b":"x","a":[1,2]};g;`,
		each + "{% set c = c.function %}{% if c.arguments is string %}{{ c.arguments }}{% else %}{{ 1 // 0 }}{% " +
			"endif %};" +
			end: `{"b":"x","a":[1,2]};;`,
		"{% for m in messages %}{{ m.role + ':' + m.content }};{% endfor " +
			"%}": "user:u;assistant:;tool:r;assistant:done;",
		"{% for m in messages %}{{ m.content }};{% endfor %}":                                      "u;;r;done;",
		"{% for m in messages %}{% if m.content is none %}null{% endif %}{% endfor %}":             "null",
		"{% for m in messages %}{{ m.tool_call_id if m.role == 'tool' }}{% endfor %}":              "1",
		"{% for m in messages %}{% if m.role == 'tool' %}{{ m.nothing.x }}{% endif %}{% endfor %}": "",
	} {
		v, err := ordered.Decode([]byte(called))
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := NewTemplate("t.jinja", source, nil)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Codec: &ChatTokenizer{}, Template: tmpl}
		messages, _ := v.(*ordered.Dict).Get("messages")
		got, err := o.render(t.Context(), v.(*ordered.Dict), messages)
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "t.jinja: line 1: dict.nothing is undefined") {
				t.Errorf("%s: %q, %v", source, got, err)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", source, got, err, want)
		}
	}
}

// Arguments that come as objects are a text, with Python's JSON, where a template adds texts; what is no object stays.
func TestArgumentsAsText(t *testing.T) {
	const source = "{% for m in messages %}{{ m.tool_calls[0].arguments + '' }}{% endfor %}"
	for given, want := range map[string]string{
		`{"a": {"b": 1}}`: `{"a": {"b": 1}}`, `"{\"a\": 1"`: `{"a": 1`, `"[1]"`: `[1]`,
	} {
		v, err := ordered.Decode([]byte(`[{"role": "assistant", "tool_calls": [{"name": "f", "arguments": ` +
			given + `}]}]`))
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := NewTemplate("t.jinja", source, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.Render(t.Context(), Chat{Messages: v.([]any)}, false, time.Time{})
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", given, got, err, want)
		}
	}
}
