package data

import (
	"strconv"
	"strings"
	"unicode"
)

// Shown is a text as a message shows it, on one line: names that somebody gave are cut at 200 characters, and control
// characters are escaped, so that a file or a client cannot write to a terminal, or a line of its own into a log.
func Shown(text string) string {
	const most = 200
	var b strings.Builder
	word := 0 // characters since the last blank
	for _, r := range text {
		switch word++; {
		case r == ' ' || r == '\n' || r == '\t': // escaped, but between words
			word = 0
			b.WriteString(shownRune(r))
		case word == most+1:
			b.WriteString("...")
		case word > most:
		default:
			b.WriteString(shownRune(r))
		}
	}
	return b.String()
}

func shownRune(r rune) string {
	if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
		return strings.Trim(strconv.QuoteRuneToASCII(r), "'")
	}
	return string(r)
}

// ShownError is an error as Shown, with a line for each of the errors that [errors.Join] put into it.
func ShownError(err error) string {
	lines := joined(err)
	for i := range lines {
		lines[i] = Shown(lines[i])
	}
	return strings.Join(lines, "\n")
}

// joined is the texts of the errors that were joined into one, or below what it wraps as its end: the first has what
// was written before them.
func joined(err error) (texts []string) {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		var all []string
		for _, part := range e.Unwrap() {
			all = append(all, part.Error())
			texts = append(texts, joined(part)...)
		}
		if strings.Join(all, "\n") == err.Error() {
			return texts
		}
	case interface{ Unwrap() error }:
		in := e.Unwrap()
		if in == nil {
			break
		}
		if before, ok := strings.CutSuffix(err.Error(), in.Error()); ok {
			texts = joined(in)
			texts[0] = before + texts[0]
			return texts
		}
	}
	return []string{err.Error()}
}
