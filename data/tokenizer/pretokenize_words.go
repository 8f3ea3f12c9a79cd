package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// wordPattern is the family of patterns that began with cl100k_base. Its alternatives, the first that matches wins:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)               if contraction is apart
//	[^\r\n\p{L}\p{N}]?WORD+                    if cased: see [wordPattern.casedEnd]
//	\p{N}{1,DIGITS}
//	 ?[^\s\p{N}WORD]+TAIL*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
//
// Every character is matched by one of them, so the pieces cover the text.
type wordPattern struct {
	word        class  // WORD
	punctuation class  // what the fourth alternative excludes
	cased       bool   // a word ends where capitals follow small letters
	apart       bool   // a contraction is a piece of its own
	attached    bool   // a contraction belongs to the cased word before it
	digits      int    // DIGITS
	tail        string // TAIL
}

// next is the end of the piece that begins at s[at], at < len(s).
func (p *wordPattern) next(s string, at int) int {
	if p.apart {
		if n := contraction(s[at:]); n > 0 {
			return at + n
		}
	}
	c, n := classAt(s, at)
	wordEnd := p.wordEnd
	if p.cased {
		wordEnd = p.casedEnd
	}
	if end := wordEnd(s, at, c, n); end > at {
		return end
	}
	if c&number != 0 {
		return digitsEnd(s, at, p.digits)
	}
	if end := p.punctuationEnd(s, at); end > at {
		return end
	}
	return spaceEnd(s, at)
}

// wordEnd is the end of a word at s[at], whose class is c and width n, with one character in front that is no letter,
// number or line end; at if there is none.
func (p *wordPattern) wordEnd(s string, at int, c class, n int) int {
	if c&(letter|number|newline) == 0 {
		if end := runOf(s, at+n, p.word); end > at+n {
			return end
		}
	}
	return runOf(s, at, p.word)
}

func (p *wordPattern) punctuationEnd(s string, at int) int {
	from := at
	if s[at] == ' ' {
		from++
	}
	end := runWithout(s, from, p.punctuation)
	if end == from {
		return at
	}
	for end < len(s) && strings.IndexByte(p.tail, s[end]) >= 0 {
		end++
	}
	return end
}

// digitsEnd is the end of at most limit numbers.
func digitsEnd(s string, at, limit int) int {
	for ; limit > 0 && at < len(s); limit-- {
		c, n := classAt(s, at)
		if c&number == 0 {
			break
		}
		at += n
	}
	return at
}

// spaceEnd matches \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line end of the white space; else all of it at the end of
// the text; else all but the last character, which goes to the word behind it, unless it is the only one.
func spaceEnd(s string, at int) int {
	end, afterNewline, last := at, at, at
	for end < len(s) {
		c, n := classAt(s, end)
		if c&space == 0 {
			break
		}
		last = end
		end += n
		if c&newline != 0 {
			afterNewline = end
		}
	}
	switch {
	case afterNewline > at:
		return afterNewline
	case end == len(s) || last == at:
		return end
	}
	return last
}

// contraction is the length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at the beginning of s, or 0. Folding case makes the long s,
// U+017F, an s.
func contraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	switch s[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 2 && s[2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 2 && s[2]|0x20 == 'l' {
			return 3
		}
	}
	if strings.HasPrefix(s[1:], "ſ") {
		return 1 + utf8.RuneLen('ſ')
	}
	return 0
}
