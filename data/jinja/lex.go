package jinja

import (
	"strings"
	"unicode"
)

// kind of a token.
type kind int

const (
	tokenEnd     kind = iota
	tokenText         // literal output
	tokenOpen         // {%
	tokenClose        // %}
	tokenPrint        // {{
	tokenPrinted      // }}
	tokenName
	tokenString
	tokenInt
	tokenFloat
	tokenOp
)

type token struct {
	kind kind
	text string // of a string: its value
	line int
}

// lexer cuts a source into tokens, and applies whitespace control as jinja2 does under trim_blocks and lstrip_blocks.
type lexer struct {
	src       string
	at        int
	line      int
	lineStart bool // the last thing read ended in a newline (or nothing was read yet)
	tokens    []token
}

func lex(source string) []token {
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{src: source, line: 1, lineStart: true}
	for l.at < len(l.src) {
		l.root()
	}
	l.emit(tokenEnd, "")
	return l.tokens
}

func (l *lexer) emit(k kind, text string) { l.tokens = append(l.tokens, token{k, text, l.line}) }

// skip moves over n bytes.
func (l *lexer) skip(n int) {
	part := l.src[l.at : l.at+n]
	l.line += strings.Count(part, "\n")
	l.lineStart = strings.HasSuffix(part, "\n")
	l.at += n
}

func (l *lexer) rest() string { return l.src[l.at:] }

// root reads text up to the next tag, and the tag.
func (l *lexer) root() {
	rest := l.rest()
	open := nextTag(rest)
	if open < 0 {
		l.emit(tokenText, rest)
		l.skip(len(rest))
		return
	}
	tag := rest[open+1]
	sign := byte(0)
	if open+2 < len(rest) && (rest[open+2] == '-' || rest[open+2] == '+') {
		sign = rest[open+2]
	}
	if text := l.strip(rest[:open], tag, sign); text != "" {
		l.emit(tokenText, text)
	}
	l.skip(open + 2)
	if sign != 0 {
		l.skip(1)
	}
	switch tag {
	case '#':
		l.comment()
	case '{':
		l.emit(tokenPrint, "")
		l.tag("}}", tokenPrinted)
	case '%':
		if !l.raw() {
			l.emit(tokenOpen, "")
			l.tag("%}", tokenClose)
		}
	}
}

func nextTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '{' && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return -1
}

// strip applies a tag's sign to the text before it: '-' takes all blanks away; without a sign a block or comment takes
// the blanks between it and the start of its line.
func (l *lexer) strip(text string, tag, sign byte) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, isSpace)
	}
	if sign == '+' || tag == '{' {
		return text
	}
	start := strings.LastIndexByte(text, '\n') + 1
	if (start > 0 || l.lineStart) && strings.TrimFunc(text[start:], isSpace) == "" {
		return text[:start]
	}
	return text
}

// closing reads what ends a tag: a sign, the end itself, and the blanks that they take away; 0 if the tag does not end
// here.
func closing(s, end string, trimNewline bool) int {
	switch {
	case strings.HasPrefix(s, "-"+end):
		n := len(end) + 1
		return n + len(s[n:]) - len(strings.TrimLeftFunc(s[n:], isSpace))
	case strings.HasPrefix(s, "+"+end) && trimNewline:
		return len(end) + 1
	case strings.HasPrefix(s, end+"\n") && trimNewline:
		return len(end) + 1
	case strings.HasPrefix(s, end):
		return len(end)
	}
	return 0
}

func (l *lexer) comment() {
	start := l.line
	for l.at < len(l.src) {
		if n := closing(l.rest(), "#}", true); n > 0 {
			l.skip(n)
			return
		}
		l.skip(1)
	}
	fail(start, "comment without #}")
}

// raw reads {% raw %} up to {% endraw %}; false if the tag is another one.
func (l *lexer) raw() bool {
	n := tagOf(l.rest(), "raw", false)
	if n == 0 {
		return false
	}
	start := l.line
	l.skip(n)
	rest := l.rest()
	for i := 0; i < len(rest); i++ {
		if !strings.HasPrefix(rest[i:], "{%") {
			continue
		}
		inner, sign := rest[i+2:], byte(0)
		if inner != "" && (inner[0] == '-' || inner[0] == '+') {
			inner, sign = inner[1:], inner[0]
		}
		if n := tagOf(inner, "endraw", true); n > 0 {
			if text := l.strip(rest[:i], '%', sign); text != "" {
				l.emit(tokenText, text)
			}
			l.skip(len(rest) - len(inner) + n)
			return true
		}
	}
	fail(start, "raw block without endraw")
	return true
}

// tagOf is the length of "name %}" at the start of s, or 0.
func tagOf(s, name string, trimNewline bool) int {
	t := strings.TrimLeftFunc(s, isSpace)
	if !strings.HasPrefix(t, name) {
		return 0
	}
	t = strings.TrimLeftFunc(t[len(name):], isSpace)
	if n := closing(t, "%}", trimNewline); n > 0 {
		return len(s) - len(t) + n
	}
	return 0
}

// tag reads the tokens of a tag up to its end. The end is not one inside brackets: {{ {'a': {}} }}.
func (l *lexer) tag(end string, k kind) {
	start := l.line
	var open []byte
	for l.at < len(l.src) {
		if len(open) == 0 {
			if n := closing(l.rest(), end, k == tokenClose); n > 0 {
				l.emit(k, "")
				l.skip(n)
				return
			}
		}
		c := l.src[l.at]
		switch c {
		case '(', '[', '{':
			open = append(open, c)
		case ')', ']', '}':
			if len(open) == 0 || open[len(open)-1] != opener[c] {
				fail(l.line, "unexpected %q", c)
			}
			open = open[:len(open)-1]
		}
		l.inside()
	}
	fail(start, "tag without %s", end)
}

var opener = map[byte]byte{')': '(', ']': '[', '}': '{'}

// isSpace is Python's str.isspace.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
