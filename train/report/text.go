package report

import "strings"

// bold text is wider by this factor.
const bold = 1.12

// textWidth is the width of text in pixels in a chart's font of 12 pixels, by DejaVu Sans, the widest of usual fonts.
func textWidth(text string) (w float64) {
	for _, r := range text {
		switch {
		case strings.ContainsRune(" .,:;'|!ijlI()[]/", r):
			w += 4.7
		case strings.ContainsRune("mwMW@%…", r), r >= 0x1100: // from there on letters of East Asia, and pictures
			w += 12
		case r >= 'A' && r <= 'Z':
			w += 9
		default:
			w += 7.7
		}
	}
	return w
}

// shortened leaves out so much of the middle that the text is at most so many pixels wide: the names of runs often
// differ at their end.
func shortened(text string, width float64) string {
	if textWidth(text) <= width {
		return text
	}
	letters := []rune(text)
	for keep := len(letters) - 1; keep > 0; keep-- {
		short := string(letters[:keep/2]) + "…" + string(letters[len(letters)-(keep+1)/2:])
		if textWidth(short) <= width {
			return short
		}
	}
	return "…"
}
