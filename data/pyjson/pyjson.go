// Package pyjson reads the numbers that Python's json module writes and JSON does not have: bare Infinity, -Infinity
// and NaN, or, in newer files, {"__float__": "Infinity"}. It imports the standard library.
package pyjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
)

var bareNumber = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?Infinity\b|\bNaN\b`)

// Plain puts bare numbers into the newer form, which is JSON.
func Plain(text []byte) []byte {
	return bareNumber.ReplaceAllFunc(text, func(token []byte) []byte {
		if token[0] == '"' {
			return token
		}
		return fmt.Appendf(nil, `{"__float__": %q}`, token)
	})
}

var wrappedNumber = regexp.MustCompile(`\{\s*"__float__":\s*"(-?Infinity|NaN)"\s*\}`)

// Bare is the inverse of [Plain].
func Bare(text []byte) []byte { return wrappedNumber.ReplaceAll(text, []byte("$1")) }

// Float is a number in either form.
type Float float64

// UnmarshalJSON reads a number or {"__float__": "Infinity"}.
func (f *Float) UnmarshalJSON(text []byte) error {
	var form struct {
		Float string `json:"__float__"`
	}
	if json.Unmarshal(text, (*float64)(f)) == nil {
		return nil
	}
	if err := json.Unmarshal(text, &form); err != nil {
		return errors.New("want a number or Infinity")
	}
	switch form.Float {
	case "Infinity":
		*f = Float(math.Inf(1))
	case "-Infinity":
		*f = Float(math.Inf(-1))
	default:
		return fmt.Errorf("%q: want a number or Infinity", form.Float)
	}
	return nil
}

// Place adds the line to a syntax or type error of a JSON text.
func Place(text []byte, err error) error {
	var offset int64
	switch e := err.(type) {
	case *json.SyntaxError:
		offset = e.Offset
	case *json.UnmarshalTypeError:
		offset = e.Offset
	default:
		return err
	}
	line := 1 + strings.Count(string(text[:min(int(offset), len(text))]), "\n")
	return fmt.Errorf("line %d: %w", line, err)
}
