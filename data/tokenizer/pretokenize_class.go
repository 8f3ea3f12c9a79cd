package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is a set of the character classes that the patterns of pre-tokenizers name.
type class uint8

const (
	letter  class = 1 << iota // \p{L}
	mark                      // \p{M}
	number                    // \p{N}
	space                     // \s
	newline                   // [\r\n], which are spaces too
	upper                     // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	lower                     // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
)

// classOf follows Go's tables, Unicode 15.0. Rust's tokenizers 0.23 has those of 16.0, which assign 4,924 more letters,
// 51 marks and 80 numbers (scripts and hieroglyphs that are new there); they are cut as punctuation here.
func classOf(r rune) (c class) {
	switch {
	case unicode.IsLetter(r):
		c = letter
		if !unicode.Is(unicode.Ll, r) {
			c |= upper
		}
		if !unicode.Is(unicode.Lu, r) && !unicode.Is(unicode.Lt, r) {
			c |= lower
		}
	case unicode.IsMark(r):
		c = mark | upper | lower
	case unicode.IsNumber(r):
		c = number
	case r == '\r' || r == '\n':
		c = space | newline
	case unicode.IsSpace(r):
		c = space
	}
	return c
}

var asciiClass = func() (t [utf8.RuneSelf]class) {
	for r := range t {
		t[r] = classOf(rune(r))
	}
	return t
}()

// classTable holds the classes of all characters: blocks of 256, equal blocks once.
type classTable struct {
	block [(unicode.MaxRune + 1) / 256]uint16
	class [][256]class
}

var classes = sync.OnceValue(func() *classTable {
	t := &classTable{}
	known := map[[256]class]uint16{}
	for b := range t.block {
		var block [256]class
		for i := range block {
			block[i] = classOf(rune(b*256 + i))
		}
		n, ok := known[block]
		if !ok {
			n = uint16(len(t.class))
			known[block] = n
			t.class = append(t.class, block)
		}
		t.block[b] = n
	}
	return t
})

// classAt is the class and the width in bytes of the character at s[at]. s is valid UTF-8.
func classAt(s string, at int) (class, int) {
	if c := s[at]; c < utf8.RuneSelf {
		return asciiClass[c], 1
	}
	return wideClassAt(s, at)
}

func wideClassAt(s string, at int) (class, int) {
	r, n := utf8.DecodeRuneInString(s[at:])
	t := classes()
	return t.class[t.block[r>>8]][r&0xff], n
}

// runOf is the end of the longest run of characters of some class in the mask that begins at s[at].
func runOf(s string, at int, mask class) int {
	for at < len(s) {
		c, n := classAt(s, at)
		if c&mask == 0 {
			break
		}
		at += n
	}
	return at
}

// runWithout is the end of the longest run of characters of no class in the mask that begins at s[at].
func runWithout(s string, at int, mask class) int {
	for at < len(s) {
		c, n := classAt(s, at)
		if c&mask != 0 {
			break
		}
		at += n
	}
	return at
}
