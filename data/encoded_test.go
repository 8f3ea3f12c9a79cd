package data

import (
	"strings"
	"testing"
)

// A line that JSON would be read from with other characters than it has is an error; a pair of surrogates is one
// character.
func TestEncoded(t *testing.T) {
	for line, want := range map[string]string{
		`{"text":"naïve 中 😀"}`:           "",
		`{"text":"\ud83d\ude00 \u00e9"}`: "",
		`{"text":"\\ud800"}`:             "", // a backslash and letters
		"{\"text\":\"na\xefve\"}":        "byte 12 of the line, 0xef, is not UTF-8",
		"\ufeff{\"text\":\"a\"}":         "byte order mark",
		"\xff\xfe{\x00":                  "byte 1 of the line, 0xff, is not UTF-8",
		`{"text":"\ud83d"}`:              `byte 10 of the line, \ud83d, is a lone surrogate`,
		`{"text":"\ude00\ud83d"}`:        `byte 10 of the line, \ude00, is a lone surrogate`,
		`{"text":"\ud83d\u0041"}`:        `byte 10 of the line, \ud83d, is a lone surrogate`,
		`{"text":"\ud83`:                 "not JSON",
		`{"text":"\`:                     "not JSON",
	} {
		_, err := object([]byte(line))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
}
