package tokenizer

import (
	"slices"
	"testing"
	"unicode"
)

// What each pattern makes of text on which they differ, worked out by hand from the expressions.
func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		regex, text string
		want        []string
	}{
		{qwen2Regex, "I'LL 'ſ 1234", []string{"I", "'LL", " '", "ſ", " ", "1", "2", "3", "4"}},
		{qwen2Regex, "we'LLx 'Rex", []string{"we", "'LL", "x", " '", "Rex"}},
		{qwen2Regex, "a \n\n  b", []string{"a", " \n\n", " ", " b"}},
		{qwen2Regex, "x  ", []string{"x", "  "}},
		{qwen2Regex, "क्षि", []string{"क", "्ष", "ि"}},
		{qwen35Regex, "क्षि", []string{"क्षि"}},
		{cl100kRegex, "12345 ...\r\n\tb", []string{"123", "45", " ...\r\n", "\tb"}},
		{cl100kRegex, "\u3000\u3000b\u00a0", []string{"\u3000", "\u3000b", "\u00a0"}},
		{o200kRegex, "HELLOworld's HelloWORLD 1234 a//\n/b", []string{"HELLOworld's", " Hello", "WORLD", " ", "123",
			"4", " a", "//\n/", "b"}},
		{o200kRegex, "1A 2b", []string{"1", "A", " ", "2", "b"}},
		{o200kRegex, "\u0301AB", []string{"\u0301", "AB"}},
		{o200kRegex, "AB文CD", []string{"AB文", "CD"}},
		{tekkenRegex, "it's 12", []string{"it", "'s", " ", "1", "2"}},
	} {
		p := &preTokenizer{splitters: []splitter{scanners[c.regex]}, spaceStep: -1}
		var got []string
		p.each(c.text, func(piece string) { got = append(got, piece) })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s\n%q:\n got %q\nwant %q", c.regex, c.text, got, c.want)
		}
	}
}

func TestClasses(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r >= 0xd800 && r <= 0xdfff {
			continue
		}
		if got, n := classAt(string(r), 0); got != classOf(r) || n != len(string(r)) {
			t.Fatalf("%U: %b of %d bytes, want %b", r, got, n, classOf(r))
		}
	}
	for r, want := range map[rune]class{'a': letter | lower, 'A': letter | upper, 'ǅ': letter | upper,
		'ʰ': letter | upper | lower,
		'中': letter | upper | lower, '\u0301': mark | upper | lower, '²': number, '\n': space | newline,
		'\u0085': space, '\u200b': 0, '_': 0} {
		if got := classOf(r); got != want {
			t.Errorf("%q: %b, want %b", r, got, want)
		}
	}
}
