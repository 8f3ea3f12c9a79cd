package data

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestShown(t *testing.T) {
	long := strings.Repeat("é", 201)
	for text, want := range map[string]string{
		"a plain message, \"quoted\"":    "a plain message, \"quoted\"",
		"a\n\tb":                         `a\n\tb`,
		"key \x1b[31m\r\x00: \u202e":     `key \x1b[31m\r\x00: \u202e`,
		"no " + long + " here":           "no " + strings.Repeat("é", 200) + "... here",
		"no " + strings.Repeat("é", 200): "no " + strings.Repeat("é", 200),
	} {
		if got := Shown(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

// Each of the errors that were joined has a line, and a newline in the text of one does not make another.
func TestShownError(t *testing.T) {
	lines := errors.Join(errors.New("key a\nb"), fmt.Errorf("c: %w", errors.Join(errors.New("d"), errors.New("e\x1b"))))
	for want, err := range map[string]error{
		`key a\nb`:                       errors.New("key a\nb"),
		`file: key a\nb`:                 fmt.Errorf("file: %w", errors.New("key a\nb")),
		"key a\\nb\nc: d\ne\\x1b":        lines,
		"x\\ny: key a\\nb\nc: d\ne\\x1b": fmt.Errorf("x\ny: %w", lines),
		`(key a\nb\nc: d\ne\x1b)`:        fmt.Errorf("(%w)", lines),
		"a: b":                           fmt.Errorf("%w: %w", errors.New("a"), errors.New("b")),
	} {
		if got := ShownError(err); got != want {
			t.Errorf("%q is shown as %q, want %q", err, got, want)
		}
	}
}
