package configs

import (
	"fmt"
	"strings"
)

// What a shape may have, far above what any has: the parser takes quadratic time and memory for a key of many parts.
const (
	mostText  = 1 << 20 // bytes
	mostParts = 16      // of a key
	mostDepth = 16      // of lists and tables in each other
)

// checkText refuses a text that the TOML parser would work on for too long.
func checkText(name, text string) error {
	if len(text) > mostText {
		return fmt.Errorf("%s: has %d bytes, a shape has at most %d", name, len(text), mostText)
	}
	line, dots, depth := 1, 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\n':
			line, dots = line+1, 0
		case '#':
			i += lineLength(text[i:]) - 1
		case '"', '\'':
			n := quoted(text[i:])
			line += strings.Count(text[i:i+n], "\n")
			i += n - 1
		case '.':
			dots++
		case '=', ',':
			dots = 0
		case '[', '{':
			dots, depth = 0, depth+1
		case ']', '}':
			depth--
		}
		if dots >= mostParts {
			return fmt.Errorf("%s:%d: a key has more than %d parts, remove some", name, line, mostParts)
		}
		if depth > mostDepth {
			return fmt.Errorf("%s:%d: lists and tables lie in each other more than %d deep", name, line, mostDepth)
		}
	}
	return nil
}

// lineLength is how far the line goes, without its end.
func lineLength(text string) int {
	if n := strings.IndexByte(text, '\n'); n >= 0 {
		return n
	}
	return len(text)
}

// quoted is the length of the string that a text starts with; without an end, of all of it.
func quoted(text string) int {
	mark := text[:1]
	if strings.HasPrefix(text, strings.Repeat(mark, 3)) {
		mark = text[:3]
	}
	for i := len(mark); i < len(text); i++ {
		switch {
		case text[i] == '\\' && mark[0] == '"':
			i++
		case strings.HasPrefix(text[i:], mark):
			return i + len(mark)
		case text[i] == '\n' && len(mark) == 1:
			return i
		}
	}
	return len(text)
}
