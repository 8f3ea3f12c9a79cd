package tokenizer

import "unicode/utf8"

// Decoder turns tokens into text as they come: what Add and Rest return, end to end, is Decode of all tokens. The zero
// value with a tokenizer is ready.
type Decoder struct {
	Tokenizer *Tokenizer
	held      []byte // a character that has not ended
}

// Add is the text that is certain after one more token.
func (d *Decoder) Add(id int32) string {
	d.held = append(d.held, d.Tokenizer.Bytes(id)...)
	n := len(d.held) - unfinished(d.held)
	text := validUTF8(d.held[:n])
	d.held = append(d.held[:0], d.held[n:]...)
	return text
}

// Rest is what was held back, after the last token.
func (d *Decoder) Rest() string {
	text := validUTF8(d.held)
	d.held = nil
	return text
}

// unfinished is the number of bytes at the end of s that begin a character which further bytes may complete.
func unfinished(s []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if tail := s[len(s)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
