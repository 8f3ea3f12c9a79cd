package jinja

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestGenerated(t *testing.T) {
	tmpl, err := Parse("{% for m in l %}<{{ m }}>{% generation %}{% set x = 9 %}[{{ m }}{{ x }}]\n{% endgeneration " +
		"%}{{ x }}!{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	res, err := tmpl.Render(context.Background(), map[string]any{"l": []any{"é", "b"}}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "<é>[é9]\n!<b>[b9]\n!"; res.Text != want {
		t.Fatalf("text %q, want %q", res.Text, want)
	}
	var parts []string
	for _, g := range res.Generated {
		parts = append(parts, res.Text[g[0]:g[1]])
	}
	if got := strings.Join(parts, "|"); got != "[é9]\n|[b9]\n" {
		t.Fatalf("generated %q", got)
	}
}

func TestStrftimeNow(t *testing.T) {
	got, err := render("{{ strftime_now('%d %b %Y %H:%M:%S %j %% %B %A %I %p %y-%m') }}", nil)
	if want := "07 Mar 2026 15:04:05 066 % March Saturday 03 PM 26-03"; err != nil || got != want {
		t.Fatalf("%q, %v, want %q", got, err, want)
	}
	tmpl, err := Parse("{{ strftime_now('%d') }}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tmpl.Render(t.Context(), nil, time.Time{}); err == nil ||
		!strings.Contains(err.Error(), "there is no date here") {
		t.Fatalf("%v", err)
	}
	if _, err := render("{{ strftime_now('%U') }}", nil); err == nil ||
		!strings.Contains(err.Error(), "%U is not supported") {
		t.Fatalf("%v", err)
	}
}

// Errors say the line of the statement, and what a template could be refused for.
func TestErrors(t *testing.T) {
	for source, want := range map[string]string{
		"a\n\n{{ nope.x }}":                       "line 3: nope is undefined",
		"a\n{% if 1 %}\n{{ 1 + 'a' }}{% endif %}": "line 3: no + of a int and a str",
		"x\n{% include 'y' %}":                    `line 2: block "include" is not supported`,
		"x\n\n{% if 1 %}":                         "line 3: the template ends where endif is missing",
		"{{ raise_exception('two\nlines') }}":     "line 1: the template raised an error: two lines",
		"{{ 'x' | center(5) }}":                   `line 1: filter "center" is not supported`,
		"{{ 'x'.zfill(5) }}": "str.zfill is undefined (or not supported) and cannot " +
			"be called",
		"{% set l = [1] %}{{ l.append(2) }}":             "list.append changes a value",
		"{% generation %}{% break %}{% endgeneration %}": "break or continue outside a loop",
		"{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}": "a generation block " +
			"inside a macro",
		"{{ varargs }}{% macro m() %}{{ varargs }}{% endmacro %}": "varargs of a macro is not " +
			"supported",
		"{{ f(*a) }}": "unpacked arguments are not supported",
	} {
		if got, err := render(source, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %q, %v, want %q", source, got, err, want)
		}
	}
}

// Operands are values of their own: "or" and "and" give one of them, and a list that grows leaves those that it came
// from.
func TestOperands(t *testing.T) {
	for source, want := range map[string]string{
		"{{ 'a' or 'b' }} {{ [] or 0 }} {{ 'a' and 2 }} {{ '' and 2 }}.":       "a 0 2 .",
		"{{ 'abc'[2:-9:-1] }} {{ 'abc'[-9::-1] }}.":                            "cba .",
		"{{ {} is sequence }} {{ {'a': 1} is iterable }} {{ 1 is sequence }}.": "True True False.",
		"{% set a = [1, 2] + [3] %}{% set b = a + [4] %}{% set c = a + [5] %}{{ b }} {{ c }}": "[1, 2, 3, 4] " +
			"[1, 2, 3, 5]",
	} {
		if got, err := render(source, nil); err != nil || got != want {
			t.Errorf("%q gives %q (%v), want %q", source, got, err, want)
		}
	}
}

// The longest chain of operators that a source can hold does not exhaust the stack.
func TestLongChain(t *testing.T) {
	if got, err := render("{{ 1"+strings.Repeat("+1", maxSource/2-10)+" }}", nil); err != nil || got != "524279" {
		t.Fatalf("%q, %v", got, err)
	}
}

func FuzzTemplate(f *testing.F) {
	vars, cases := readCases(f)
	for _, c := range cases {
		f.Add(c.Template)
	}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err != nil {
			return
		}
		now := time.Unix(0, 0)
		res, err := tmpl.Render(context.Background(), vars, now)
		again, err2 := tmpl.Render(context.Background(), vars, now)
		if (err == nil) != (err2 == nil) || res.Text != again.Text {
			t.Fatalf("%q renders to %q, %v, then to %q, %v", source, res.Text, err, again.Text, err2)
		}
	})
}

func BenchmarkCases(b *testing.B) {
	vars, cases := readCases(b)
	var list []*Template
	for _, c := range cases {
		if t, err := Parse(c.Template); err == nil {
			list = append(list, t)
		}
	}
	for b.Loop() {
		for _, t := range list {
			t.Render(context.Background(), vars, time.Time{})
		}
	}
}
