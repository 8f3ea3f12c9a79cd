package data

import (
	"strconv"
	"strings"
	"unicode"
)

// Shown is a text as a message shows it: names that somebody gave are cut at 200 characters, and control characters
// are escaped, so that a file or a client cannot write to a terminal or a log. Lines stay lines.
func Shown(text string) string {
	const most = 200
	var b strings.Builder
	word := 0 // characters since the last blank
	for _, r := range text {
		switch word++; {
		case r == ' ' || r == '\n' || r == '\t':
			word = 0
			b.WriteRune(r)
		case word == most+1:
			b.WriteString("...")
		case word > most:
		case unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
