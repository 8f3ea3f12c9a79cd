package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// joiner is the combining grapheme joiner, which the library inserts after 30 marks in a row (UAX 15, section 13,
// Stream-Safe Text Format), and Normalization Form C proper does not.
const joiner = "\u034f"

// nfc is Normalization Form C, with the library's tables (Unicode 15.0).
func nfc(s string) string {
	if isASCII(s) {
		return s
	}
	out := norm.NFC.String(s)
	if strings.Count(out, joiner) > strings.Count(s, joiner) {
		return nfcOfManyMarks(s)
	}
	return out
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

type combining struct {
	r     rune
	class uint8 // canonical combining class, 0 for a starter
}

// nfcOfManyMarks normalises by the letter of UAX 15: decompose, order marks by class, compose each with the last
// starter unless a mark of the same or a higher class, or a starter, stands between.
func nfcOfManyMarks(s string) string {
	var runes []combining
	for _, r := range s {
		for _, d := range norm.NFD.String(string(r)) {
			runes = append(runes, combining{d, norm.NFD.PropertiesString(string(d)).CCC()})
		}
	}
	orderMarks(runes)
	out := runes[:0]
	starter := -1 // in out
	for _, c := range runes {
		if starter >= 0 {
			last := out[len(out)-1]
			blocked := len(out)-1 > starter && (last.class >= c.class)
			if joined, ok := compose(out[starter].r, c.r); ok && !blocked {
				out[starter].r = joined
				continue
			}
		}
		if c.class == 0 {
			starter = len(out)
		}
		out = append(out, c)
	}
	var b strings.Builder
	for _, c := range out {
		b.WriteRune(c.r)
	}
	return b.String()
}

// orderMarks sorts each run of marks by class; marks of one class keep their order.
func orderMarks(runes []combining) {
	for from := 0; from < len(runes); {
		to := from
		for to < len(runes) && runes[to].class != 0 {
			to++
		}
		slices.SortStableFunc(runes[from:to], func(a, b combining) int { return int(a.class) - int(b.class) })
		from = to + 1
	}
}

// compose is the primary composite of two characters.
func compose(a, b rune) (rune, bool) {
	joined := norm.NFC.String(string(a) + string(b))
	r, n := utf8.DecodeRuneInString(joined)
	return r, n == len(joined)
}
