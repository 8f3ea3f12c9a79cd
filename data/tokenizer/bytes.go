package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// byteRunes gives each byte the character that stands for it in the tokens of a byte-level vocabulary: itself if it is
// a visible character of Latin-1, else the next one from U+0100 on (openai/gpt-2, src/encoder.py, bytes_to_unicode).
var byteRunes = func() (t [256]rune) {
	next := rune(256)
	for b := range t {
		if t[b] = rune(b); b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			t[b] = next
			next++
		}
	}
	return t
}()

// runeBytes is the way back; -1 stands for no byte.
var runeBytes = func() (t [324]int16) {
	for r := range t {
		t[r] = -1
	}
	for b, r := range byteRunes {
		t[r] = int16(b)
	}
	return t
}()

// toByteLevel writes each byte of s as its character.
func toByteLevel(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(byteRunes[s[i]])
	}
	return b.String()
}

// fromByteLevel is the bytes that a token stands for. A token with any character that stands for no byte is meant as it
// is.
func fromByteLevel(token string) string {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		if int(r) >= len(runeBytes) || runeBytes[r] < 0 {
			return token
		}
		out = append(out, byte(runeBytes[r]))
	}
	return string(out)
}

// validUTF8 replaces what is not UTF-8 by U+FFFD, one for each longest beginning of a character that could have become
// one, else for each byte (Unicode, section 3.9, table 3-8; Rust's from_utf8_lossy).
func validUTF8(s []byte) string {
	if utf8.Valid(s) {
		return string(s)
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		if r == utf8.RuneError && n == 1 {
			n = brokenLen(s)
		}
		b.WriteRune(r)
		s = s[n:]
	}
	return b.String()
}

// brokenLen is the number of bytes of s, which begins with no valid character, that one U+FFFD replaces.
func brokenLen(s []byte) int {
	low, high, more := byte(0x80), byte(0xbf), 0 // the range of the second byte, and how many bytes may follow
	switch c := s[0]; {
	case c >= 0xc2 && c <= 0xdf:
		more = 1
	case c >= 0xe0 && c <= 0xef:
		more = 2
	case c >= 0xf0 && c <= 0xf4:
		more = 3
	}
	switch s[0] {
	case 0xe0:
		low = 0xa0
	case 0xed:
		high = 0x9f
	case 0xf0:
		low = 0x90
	case 0xf4:
		high = 0x8f
	}
	n := 1
	for n <= more && n < len(s) && low <= s[n] && s[n] <= high {
		low, high = 0x80, 0xbf
		n++
	}
	return n
}
