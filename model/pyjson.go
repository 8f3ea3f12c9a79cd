package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
)

// Python writes numbers that are not JSON: bare Infinity, -Infinity and NaN, or, in newer files, {"__float__":
// "Infinity"}.

var bareNumber = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?Infinity\b|\bNaN\b`)

// plainJSON puts bare numbers into the newer form.
func plainJSON(text []byte) []byte {
	return bareNumber.ReplaceAllFunc(text, func(token []byte) []byte {
		if token[0] == '"' {
			return token
		}
		return fmt.Appendf(nil, `{"__float__": %q}`, token)
	})
}

var wrappedNumber = regexp.MustCompile(`\{\s*"__float__":\s*"(-?Infinity|NaN)"\s*\}`)

// bareJSON is the inverse of plainJSON.
func bareJSON(text []byte) []byte { return wrappedNumber.ReplaceAll(text, []byte("$1")) }

// pyFloat is a number in either form.
type pyFloat float64

// UnmarshalJSON reads a number or {"__float__": "Infinity"}.
func (f *pyFloat) UnmarshalJSON(text []byte) error {
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
		*f = pyFloat(math.Inf(1))
	case "-Infinity":
		*f = pyFloat(math.Inf(-1))
	default:
		return fmt.Errorf("%q: want a number or Infinity", form.Float)
	}
	return nil
}
