package data

import (
	"strings"
	"testing"
)

func TestShown(t *testing.T) {
	long := strings.Repeat("é", 201)
	for text, want := range map[string]string{
		"a plain\nmessage, \"quoted\"":   "a plain\nmessage, \"quoted\"",
		"key \x1b[31m\r\x00: \u202e":     `key \x1b[31m\r\x00: \u202e`,
		"no " + long + " here":           "no " + strings.Repeat("é", 200) + "... here",
		"no " + strings.Repeat("é", 200): "no " + strings.Repeat("é", 200),
	} {
		if got := Shown(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
