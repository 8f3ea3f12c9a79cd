package data

import (
	"fmt"
	"strings"
)

// Final says where in a text the answer stands. Blanks around it do not count.
type Final string

const (
	FinalText  Final = "text"  // the whole text
	FinalLine  Final = "line"  // the last line that is not blank
	FinalAfter Final = "after" // after the last marker, to the end of that line
	FinalBoxed Final = "boxed" // what the last \boxed{} holds; braces in it are in pairs
)

func (f Final) validate(marker string) error {
	switch f {
	case FinalText, FinalLine, FinalAfter, FinalBoxed:
	default:
		return fmt.Errorf("the place of the final answer is %q: want %q, %q, %q or %q", f, FinalText, FinalLine,
			FinalAfter, FinalBoxed)
	}
	if (f == FinalAfter) != (strings.TrimSpace(marker) != "") {
		return fmt.Errorf("the place of the final answer is %q with the marker %q: want a marker for %q and for "+
			"nothing else", f, marker, FinalAfter)
	}
	return nil
}

// find is the answer in a text; false if there is none or it is empty.
func (f Final) find(text, marker string) (string, bool) {
	switch f {
	case FinalLine:
		text = strings.TrimSpace(text)
		text = text[strings.LastIndexByte(text, '\n')+1:]
	case FinalAfter:
		i := strings.LastIndex(text, marker)
		if i < 0 {
			return "", false
		}
		text, _, _ = strings.Cut(text[i+len(marker):], "\n")
	case FinalBoxed:
		i := strings.LastIndex(text, boxed)
		if i < 0 {
			return "", false
		}
		text = braced(text[i+len(boxed):])
	}
	text = strings.TrimSpace(text)
	return text, text != ""
}

const boxed = `\boxed{`

// braced is the text up to the brace that closes one opened before text; "" if none does, as when an answer was cut
// off. \{ and \} do not count.
func braced(text string) string {
	depth := 1
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return text[:i]
			}
		}
	}
	return ""
}

// exactEqual compares as text. The line's answer may itself be marked, as worked solutions are.
func exactEqual(at Final, marker string, a Answer) bool {
	want := strings.TrimSpace(a.Want)
	if at == FinalAfter || at == FinalBoxed {
		if marked, ok := at.find(want, marker); ok {
			want = marked
		}
	}
	got, ok := at.find(a.Text, marker)
	return ok && got == want
}
