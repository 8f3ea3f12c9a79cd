package configs

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Every integer of a shape has an upper bound, so that no product of two overflows; seeds are no sizes.
func TestIntegersHaveRanges(t *testing.T) {
	n := 0
	for _, f := range schema {
		if f.typ.Kind() != reflect.Int || strings.HasSuffix(f.key, "seed") {
			continue
		}
		n++
		if !f.within.set || f.within.high > math.MaxInt32 {
			t.Errorf("%s has no upper bound", f.key)
		}
	}
	if n < 40 {
		t.Errorf("%d integers", n)
	}
}

// A text that the parser would work on for minutes is refused at once, with its line; strings and comments do not
// count.
func TestDeepText(t *testing.T) {
	deep := strings.Repeat("a.", 20_000)
	for text, want := range map[string]string{
		"\n" + deep + "a = 1":                       "s.toml:2: a key has more than",
		"\n\n[" + deep + "a]":                       "s.toml:3: a key has more than",
		"x = {" + deep + "a = 1}":                   "s.toml:1: a key has more than",
		strings.Repeat(`"a".`, 17) + "b = 1":        "s.toml:1: a key has more than",
		"x = \"\"\"\n\"\"\"\n" + deep + "a = 1":     "s.toml:3: a key has more than",
		"x = " + strings.Repeat("[", 1e5):           "s.toml:1: lists and tables lie",
		"x = " + strings.Repeat("{a=", 1e5):         "s.toml:1: lists and tables lie",
		strings.Repeat("a = 1\n", 200_000):          "has 1200000 bytes, a shape has",
		"x = '" + deep + "'":                        "x: unknown key",
		"# " + deep + strings.Repeat("[", 99):       "model.path",
		"x = \"\\\"" + deep + "[[[[[[[[[[[[[[[[[\"": "x: unknown key",
		"x = [[1.5, 2.5], [3.5, " + "4.5]]":         "x: unknown key",
	} {
		start := time.Now()
		if _, err := Parse("s.toml", []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %.200v, want %q", text, err, want)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("%.40q took %v", text, took)
		}
	}
	if _, err := Parse("s.toml", nil, []string{"model.config." + deep + "a=1"}); err == nil ||
		!strings.Contains(err.Error(), "too deep") {
		t.Errorf("%.300v", err)
	}
}

// At most 20 faults are told.
func TestManyProblems(t *testing.T) {
	var text strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&text, "a%d = 1\n", i)
	}
	_, err := Parse("s.toml", []byte(text.String()), nil)
	if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != 21 || lines[20] != "and 2983 more" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}
