package jinja

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
)

// What would run for ever, or out of memory or stack, is an error, soon.
func TestBounds(t *testing.T) {
	ns := "{% set ns = namespace(x='ab', l=[]) %}{% for i in range(100000) %}"
	for source, want := range map[string]string{
		"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "the template takes",
		ns + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}":                                  "a string exceeds",
		ns + "{% set ns.x = ns.x * 99999 %}{% endfor %}":                                 "a string exceeds",
		ns + "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}":                      "a string exceeds",
		ns + "{% set ns.x = ns.x.join(['', '', '']) %}{% endfor %}":                      "a string exceeds",
		ns + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}":                       "nested more than",
		ns + "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}":                    "nested more than",
		ns + "{% set ns.l = [1] + ns.l * 2 %}{% endfor %}":                               "a list exceeds",
		"{{ 'abc' * 9999999999999 }}":                                                    "a string exceeds",
		"{{ [1] * 9999999999999 }}":                                                      "a list exceeds",
		"{{ 'a' | indent(9999999999) }}":                                                 "a string exceeds",
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}":                                "macros call each other",
		"{{ (-1) ** 9999999999999 }}x{{ 3 ** 99 }}":                                      "an int exceeds 64 bits",
		"{{ 9223372036854775807 + 1 }}":                                                  "an int exceeds 64 bits",
		"{{ -9223372036854775807 - 2 }}":                                                 "an int exceeds 64 bits",
		"{{ " + strings.Repeat("(", 1e5) + "1" + strings.Repeat(")", 1e5) + " }}":        "nested more than",
		"{{ " + strings.Repeat("-", 1e5) + "1 }}":                                        "nested more than",
		"{{ " + strings.Repeat("not ", 1e5) + "1 }}":                                     "nested more than",
		"{{ 1" + strings.Repeat("+1", maxSource/2) + " }}":                               "has more than",
		strings.Repeat("{% if 1 %}", 1e4):                                                "nested more than",
		"{% if 0 %}" + strings.Repeat("{% elif 0 %}", 1e4) + "{% endif %}":               "nested more than",
	} {
		start := time.Now()
		if _, err := render(source, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %.200v, want %q", source, err, want)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%.80q took %v", source, took)
		}
	}
}

// grown is a loop in which x and l, a string and a list, grow by what each round does.
func grown(setup, round string) string {
	return "{% set ns = namespace(x='aB c', l=[], k=[]) %}" + setup + "{% for i in range(100000) %}" + round +
		"{% endfor %}"
}

func again(round string) string { return "{% for i in range(1000) %}" + round + "{% endfor %}" }

const (
	doubled = "{% for i in range(18) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"            // x has 1 MiB
	shared  = "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"           // l has 2^60 paths
	other   = "{% for i in range(60) %}{% set ns.k = [ns.k, ns.k] %}{% endfor %}"           // equal to l
	wide    = "{% set ns.l = range(99999) | list %}{% set ns.k = range(99999) | list %}"    // two equal lists
	texts   = doubled + "{% set ns.l = [ns.x] * 1000 %}{% set ns.k = [ns.x ~ ''] * 1000 %}" // of long strings
)

// Every way to work counts: what a step does with a large value costs steps, and what it makes, bytes.
func TestBudget(t *testing.T) {
	for name, source := range map[string]string{
		"lists shared 60-fold":  grown(shared+other, "{{ ns.l == ns.k }}"),
		"ordered likewise":      grown(shared+other, "{{ ns.l < ns.k }}"),
		"looked for likewise":   grown(shared+other, "{{ ns.l in [ns.k] }}{{ [ns.l].index(ns.k) }}"),
		"changed likewise":      grown(shared+other, "{{ loop.changed(ns.l) }}{{ loop.changed(ns.k) }}"),
		"sorted likewise":       grown(shared+other, "{{ [ns.l, ns.k] | sort | length }}"),
		"printed likewise":      grown(shared, "{{ ns.l }}"),
		"wide lists":            grown(wide, "{{ ns.l == ns.k }}"),
		"elements of a list":    grown(wide, "{{ -1 in ns.l }}"),
		"counted":               grown(wide, "{{ ns.l.count(-1) }}"),
		"sums":                  grown(wide, "{{ ns.l | sum }}"),
		"extremes":              grown(wide, "{{ ns.l | max }}"),
		"unique":                grown(wide, "{{ ns.l | unique | length }}"),
		"sorts":                 grown(wide, "{{ ns.l | sort | first }}"),
		"copies":                grown(wide, "{{ ns.l | list | first }}{{ ns.l[1:] | first }}"),
		"kept copies":           grown(wide, "{% set ns.k = [ns.k, ns.l + [i]] %}"),
		"strings":               grown(texts, "{{ ns.l == ns.k }}"),
		"sorted strings":        grown(texts, "{{ (ns.l + ns.k) | sort | length }}"),
		"upper":                 grown(doubled, "{{ ns.x | upper | length }}"),
		"lower, kept":           grown(doubled, "{% set ns.l = [ns.l, ns.x | lower] %}"),
		"titles":                grown(doubled, "{{ ns.x | title | length }}{{ ns.x.title() | length }}"),
		"capitalize":            grown(doubled, "{{ ns.x | capitalize | length }}"),
		"words":                 grown(doubled, "{{ ns.x | wordcount }}"),
		"split":                 grown(doubled, "{{ ns.x.split('a') | length }}"),
		"split at blanks":       grown(doubled, "{{ ns.x.split() | length }}"),
		"lines":                 grown(doubled, "{{ ns.x.splitlines() | length }}"),
		"finds":                 grown(doubled, "{{ ns.x.find('zz') }}{{ ns.x.count('q') }}{{ 'q' in ns.x }}"),
		"strips":                grown(doubled, "{{ ns.x.strip('aBc ') | length }}"),
		"replaces":              grown(doubled, "{{ ns.x.replace('a', 'b') | length }}"),
		"joins":                 grown(doubled, "{{ [ns.x, 'a'] | join | length }}"),
		"reverses":              grown(doubled, "{{ ns.x[::-1] | length }}{{ ns.x | reverse | length }}"),
		"characters":            grown(doubled, "{{ ns.x[3] }}"),
		"digits":                grown(doubled, "{{ ('1' * 9999999).isdigit() }}"),
		"repetition":            grown("", "{{ ('a' * 9999999) | length }}"),
		"lists repeated":        grown("", "{{ ([1] * 999999) | length }}"),
		"kept strings":          grown("", "{% set ns.l = [ns.l, 'a' * 9999999] %}"),
		"json":                  grown(wide, "{{ ns.l | tojson | length }}"),
		"indented json":         grown(wide, "{{ [[[ns.l]]] | tojson(indent='a' * 9999999) | length }}"),
		"indented":              grown(doubled, "{{ ns.x | indent(10) | length }}"),
		"macros":                grown("{% macro m(a) %}{{ a }}{% endmacro %}"+doubled, "{{ m(ns.x) | length }}"),
		"macros kept":           grown("", again("{% macro m() %}{% endmacro %}{% set ns.l = [ns.l, m] %}")),
		"dicts":                 grown("", again("{% set ns.l = [ns.l, dict(a=1, b=2, c=3)] %}")),
		"items":                 grown("{% set d = dict(a=1, b=2) %}", again("{% set ns.l = [ns.l, d.items()] %}")),
		"keys":                  grown(doubled, "{% set ns.l = [ns.l, {ns.x: 1}[ns.x]] %}"),
		"mapped":                grown(wide, "{{ ns.l | map('string') | list | length }}"),
		"selected":              grown(wide, "{{ ns.l | select('even') | list | length }}"),
		"characters of strings": grown(doubled, "{% for c in ns.x[:99999] %}{% endfor %}"),
		"a block, often":        grown(doubled, "{% set y %}{{ ns.x }}{% endset %}"),
	} {
		err := measured(t, name, source, 8)
		if err == nil || !strings.Contains(err.Error(), "the template ") && !strings.Contains(err.Error(), "exceeds") {
			t.Errorf("%s: %.200v, want a bound", name, err)
		}
	}
}

// measured renders a template with a part of the bounds. It must take neither long nor much memory, garbage included.
func measured(t *testing.T, name, source string, part int) error {
	t.Helper()
	tmpl, err := Parse(source)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	r := newRun(context.Background(), nil, time.Time{})
	r.steps, r.made = maxSteps/part, maxMade/part
	var before, after runtime.MemStats
	most := uint64(4*r.made + 1<<20)
	runtime.ReadMemStats(&before)
	start := time.Now()
	_, err = r.render(tmpl.body)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > most {
		t.Errorf("%s: made %d MiB", name, made>>20)
	}
	if took > 10*time.Second { // about 1 s on a machine without other work
		t.Errorf("%s: took %v", name, took)
	}
	return err
}

// A rendering ends soon after its context does.
func TestCancelled(t *testing.T) {
	tmpl, err := Parse(grown("", grown("", "")))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	start := time.Now()
	if _, err = tmpl.Render(ctx, nil, time.Time{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if took := time.Since(start); took > 100*time.Millisecond {
		t.Fatalf("took %v", took)
	}
}

// FuzzBudget draws loops whose rounds let values grow and work on them: each ends, soon and in bounded memory.
func FuzzBudget(f *testing.F) {
	rounds := []string{
		"{% set ns.x = ns.x ~ ns.x %}", "{% set ns.l = [ns.l, ns.l] %}", "{% set ns.k = ns.l + ns.l %}",
		"{% set ns.l = ns.l + [ns.x] %}", "{% set ns.x = ns.x.replace('a', 'aab') %}", "{{ ns.l == ns.k }}",
		"{% set ns.k = [ns.k, ns.x | upper] %}", "{{ ns.x | title }}", "{% set ns.x = ns.l | tojson %}",
		"{% set ns.l = ns.x.split('a') %}", "{{ ns.l | sort }}", "{{ ns.x[::-1] }}", "{% set ns.l = ns.x | list %}",
		"{% set ns.x = ns.l | join(ns.x[:9]) %}", "{{ ns.l | map('length') | list }}", "{% set ns.k = ns.l * 3 %}",
		"{% set ns.x = ns.x | indent(7) %}", "{{ ns.k | unique | list }}", "{{ ns.x in ns.l }}", "{{ ns.k < ns.l }}",
		"{% set ns.x = ns.l | string %}", "{{ ns.x.strip(ns.x) }}", "{{ loop.changed(ns.l) }}",
		"{% macro m(a) %}{{ a }}{% endmacro %}{% set ns.x = m(ns.x) ~ 'a\n' %}", "{{ ns.k | groupby(0) }}",
		"{% for y in ns.l %}{{ y }}{% endfor %}", "{% set ns.l = [dict(a=ns.l)] %}", "{{ ns.x.count(ns.x[:2]) }}",
	}
	for i := range rounds {
		f.Add([]byte{byte(i), byte(i * 7), byte(i * 3)})
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		var round strings.Builder
		for _, op := range program[:min(len(program), 8)] {
			round.WriteString(rounds[int(op)%len(rounds)])
		}
		measured(t, round.String(), grown("", round.String()), 1000)
	})
}
