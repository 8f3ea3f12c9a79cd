package jinja

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// operators, longer ones first.
var operators = []string{
	"**", "//", "==", "!=", "<=", ">=",
	"+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", "|", ".", ",", ":",
}

// inside reads one token of a tag, or a blank.
func (l *lexer) inside() {
	rest := l.rest()
	r, size := utf8.DecodeRuneInString(rest)
	switch {
	case isSpace(r):
		l.skip(size)
	case r == '_' || unicode.IsLetter(r):
		n := strings.IndexFunc(rest, func(r rune) bool {
			return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
		})
		if n < 0 {
			n = len(rest)
		}
		l.emit(tokenName, rest[:n])
		l.skip(n)
	case r >= '0' && r <= '9':
		l.number(rest)
	case r == '\'' || r == '"':
		l.str(rest)
	default:
		for _, op := range operators {
			if strings.HasPrefix(rest, op) {
				l.emit(tokenOp, op)
				l.skip(len(op))
				return
			}
		}
		fail(l.line, "unexpected %q", r)
	}
}

// number reads an integer or a float; underscores may part digits.
func (l *lexer) number(rest string) {
	if n := prefixed(rest); n > 0 {
		l.emit(tokenInt, strings.ReplaceAll(rest[:n], "_", ""))
		l.skip(n)
		return
	}
	n, k := digits(rest), tokenInt
	if f := digits(rest[min(n+1, len(rest)):]); rest[n:] != "" && rest[n] == '.' && f > 0 {
		n, k = n+1+f, tokenFloat
	}
	if e := n; e < len(rest) && (rest[e] == 'e' || rest[e] == 'E') {
		e++
		if e < len(rest) && (rest[e] == '+' || rest[e] == '-') {
			e++
		}
		if f := digits(rest[e:]); f > 0 {
			n, k = e+f, tokenFloat
		}
	}
	l.emit(k, strings.ReplaceAll(rest[:n], "_", ""))
	l.skip(n)
}

// prefixed is the length of a number in base 2, 8 or 16, 0 if it is none.
func prefixed(s string) int {
	if len(s) < 3 || s[0] != '0' || !strings.ContainsRune("bBoOxX", rune(s[1])) {
		return 0
	}
	n := 2
	for n < len(s) && (s[n] == '_' || s[n] >= '0' && s[n] <= '9' || s[n]|0x20 >= 'a' && s[n]|0x20 <= 'f') {
		n++
	}
	return n
}

// digits is the length of a run of digits, with single underscores inside.
func digits(s string) int {
	n := 0
	for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] == '_' && n > 0 && s[n-1] != '_' && n+1 < len(s) &&
		s[n+1] >= '0' && s[n+1] <= '9') {
		n++
	}
	return n
}

// str reads a quoted string with Python's escapes.
func (l *lexer) str(rest string) {
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case rest[0]:
			l.emit(tokenString, l.unescape(rest[1:i]))
			l.skip(i + 1)
			return
		}
	}
	fail(l.line, "string without its closing %c", rest[0])
}

var escapes = map[byte]string{
	'n': "\n", 't': "\t", 'r': "\r", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v",
	'\n': "",
}

func (l *lexer) unescape(s string) string {
	var b strings.Builder
	for s != "" {
		i := strings.IndexByte(s, '\\')
		if i < 0 {
			i = len(s)
		}
		b.WriteString(s[:i])
		if s = s[i:]; s == "" {
			break
		}
		s = s[1:]
		if text, ok := escapes[s[0]]; ok {
			b.WriteString(text)
			s = s[1:]
			continue
		}
		s = l.code(&b, s)
	}
	return b.String()
}

// code reads the escapes that name a code point: \x2d, \u2014, \U0001f600 and octal; others stay as they are, backslash
// too.
func (l *lexer) code(b *strings.Builder, s string) string {
	base, skip, n := 16, 1, map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[0]]
	if s[0] >= '0' && s[0] <= '7' {
		base, skip = 8, 0
		for n < len(s) && n < 3 && s[n] >= '0' && s[n] <= '7' {
			n++
		}
	}
	if n == 0 {
		b.WriteByte('\\')
		return s
	}
	if skip+n > len(s) {
		fail(l.line, "escape \\%s is cut off", s)
	}
	v, err := strconv.ParseUint(s[skip:skip+n], base, 32)
	if err != nil || v > unicode.MaxRune || v >= 0xd800 && v < 0xe000 {
		fail(l.line, "escape \\%s is not a character", s[:skip+n])
	}
	b.WriteRune(rune(v))
	return s[skip+n:]
}
