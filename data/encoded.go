package data

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// CheckEncoding returns an error if encoding/json would silently replace a part of a text, which a word names, by
// U+FFFD.
func CheckEncoding(name string, text []byte) error {
	if bytes.HasPrefix(text, []byte("\ufeff")) {
		return fmt.Errorf("the %s begins with a byte order mark, write UTF-8 without one", name)
	}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			return fmt.Errorf("byte %d of the %s, %#02x, is not UTF-8, write it as UTF-8", i+1, name, text[i])
		}
		if r == '\\' {
			if n = escape(text[i:]); n == 0 {
				return fmt.Errorf("byte %d of the %s, %.6s, is a lone surrogate, write the character itself", i+1, name,
					text[i:])
			}
		}
		i += n
	}
	return nil
}

// escape is the length of the escape at the beginning of text; 0: it is a lone surrogate. Invalid escapes are left to
// the JSON decoder.
func escape(text []byte) int {
	r := escaped(text)
	switch {
	case r < 0:
		return min(2, len(text))
	case !utf16.IsSurrogate(r):
		return 6
	case utf16.DecodeRune(r, escaped(text[6:])) == utf8.RuneError:
		return 0
	}
	return 12
}

// escaped is the code of \uXXXX at the beginning of text; -1: there is none.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
