package jinja

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"lockstep/data/ordered"
)

// goldenCase is a line of testdata/cases.jsonl: a template with what jinja2 makes of it, or its error.
type goldenCase struct {
	Template, Text, Error string
}

// stricter are cases that jinja2 renders and this package refuses, each for a reason.
var stricter = map[string]string{
	"{% raw %}":                              "jinja2 takes an unclosed raw block at the very end for nothing",
	"{% for x in l recursive %}{% endfor %}": "recursive loops are not supported",
}

func TestCases(t *testing.T) {
	vars, cases := readCases(t)
	refused := 0
	for _, c := range cases {
		got, err := render(c.Template, vars)
		switch {
		case c.Error != "" && err == nil:
			t.Errorf("%q gives %q, jinja2 refuses it: %s", c.Template, got, c.Error)
		case c.Error != "" && strings.Contains(err.Error(), "\n"):
			t.Errorf("%q: the error has several lines: %v", c.Template, err)
		case c.Error == "" && err != nil && stricter[c.Template] == "":
			t.Errorf("%q: %v, want %q", c.Template, err, c.Text)
		case c.Error == "" && err == nil && got != c.Text:
			t.Errorf("%q gives %q, want %q", c.Template, got, c.Text)
		case c.Error == "" && err != nil:
			refused++
		}
	}
	if len(cases) < 500 || refused != len(stricter) {
		t.Errorf("%d cases, %d refused where jinja2 renders, want %d", len(cases), refused, len(stricter))
	}
}

func render(source string, vars map[string]any) (string, error) {
	t, err := Parse(source)
	if err != nil {
		return "", err
	}
	res, err := t.Render(context.Background(), vars, time.Date(2026, 3, 7, 15, 4, 5, 0, time.UTC))
	return res.Text, err
}

func readCases(t testing.TB) (map[string]any, []goldenCase) {
	t.Helper()
	f, err := os.Open("testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	vars := map[string]any{}
	var cases []goldenCase
	for lines.Scan() {
		if len(vars) == 0 {
			v, err := ordered.Decode(lines.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			given, _ := v.(*ordered.Dict).Get("vars")
			for _, k := range given.(*ordered.Dict).Keys() {
				vars[k.(string)], _ = given.(*ordered.Dict).Get(k)
			}
			continue
		}
		var c goldenCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return vars, cases
}
