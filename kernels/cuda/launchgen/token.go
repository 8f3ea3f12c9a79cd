package main

import (
	"fmt"
	"strings"
)

type kind int

const (
	identifier kind = iota
	number
	text // a string or a character
	punctuation
)

// position is a line of a source.
type position struct {
	file string
	line int
}

func (p position) errorf(format string, a ...any) error {
	return fmt.Errorf("%s:%d: %s", p.file, p.line, fmt.Sprintf(format, a...))
}

// token is a preprocessing token. hide is the macros that it must not be expanded by.
type token struct {
	kind kind
	text string
	at   position
	hide []string
}

func (t token) is(s string) bool { return t.kind != text && t.text == s }

// line is a logical line: continued lines are joined, and comments are spaces.
type line struct {
	text string
	at   position
}

// lines cuts a source.
func lines(file, source string) ([]line, error) {
	var all []line
	var b strings.Builder
	number, begin := 1, 1
	flush := func() {
		all = append(all, line{b.String(), position{file, begin}})
		b.Reset()
		begin = number
	}
	for i := 0; i < len(source); i++ {
		rest := source[i:]
		switch c := source[i]; {
		case strings.HasPrefix(rest, "\\\n"):
			i++
			number++
		case c == '\n':
			number++
			flush()
		case strings.HasPrefix(rest, "//"):
			for i+1 < len(source) && source[i+1] != '\n' {
				i++
				if strings.HasPrefix(source[i:], "\\\n") {
					i++
					number++
				}
			}
			b.WriteByte(' ')
		case strings.HasPrefix(rest, "/*"):
			end := strings.Index(rest[2:], "*/")
			if end < 0 {
				return nil, position{file, number}.errorf("comment without an end")
			}
			number += strings.Count(rest[:end+4], "\n")
			i += end + 3
			b.WriteByte(' ')
		case c == '"' || c == '\'':
			end := i + 1
			for end < len(source) && source[end] != c && source[end] != '\n' {
				if source[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(source) || source[end] != c {
				if c == '\'' && i > 0 && letter(source[i-1]) { // 1'000
					b.WriteByte(c)
					continue
				}
				return nil, position{file, number}.errorf("string without an end")
			}
			b.WriteString(source[i : end+1])
			i = end
		default:
			b.WriteByte(c)
		}
	}
	flush()
	return all, nil
}

func letter(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// tokens cuts a line.
func (l line) tokens() []token {
	var all []token
	for s := l.text; s != ""; {
		n, k := 1, punctuation
		switch c := s[0]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v':
			s = s[1:]
			continue
		case '0' <= c && c <= '9':
			k = number
			for n < len(s) && (letter(s[n]) || s[n] == '.' || s[n] == '\'') {
				n++
			}
		case letter(c):
			k = identifier
			for n < len(s) && letter(s[n]) {
				n++
			}
		case c == '"' || c == '\'':
			k = text
			for n < len(s) && s[n] != c {
				if s[n] == '\\' {
					n++
				}
				n++
			}
			n = min(n+1, len(s))
		default:
			for _, p := range []string{"...", "##", "<<", ">>", "&&", "||", "::", "->", "==", "!=", "<=", ">="} {
				if strings.HasPrefix(s, p) {
					n = len(p)
					break
				}
			}
		}
		all = append(all, token{kind: k, text: s[:n], at: l.at})
		s = s[n:]
	}
	return all
}
