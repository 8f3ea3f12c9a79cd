package tokenizer

import "strings"

// gpt2Regex is what a ByteLevel pre-tokenizer cuts by if use_regex is set (openai/gpt-2, src/encoder.py).
const gpt2Regex = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// gpt2End is the scanner of gpt2Regex.
func gpt2End(s string, at int) int {
	for _, suffix := range [...]string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
		if strings.HasPrefix(s[at:], suffix) {
			return at + len(suffix)
		}
	}
	from := at
	if s[at] == ' ' {
		from++
	}
	for _, mask := range [...]class{letter, number} {
		if end := runOf(s, from, mask); end > from {
			return end
		}
	}
	if end := runWithout(s, from, space|letter|number); end > from {
		return end
	}
	return gpt2SpaceEnd(s, at)
}

// gpt2SpaceEnd matches \s+(?!\S)|\s+ : line ends are white space like any other.
func gpt2SpaceEnd(s string, at int) int {
	end, last := at, at
	for end < len(s) {
		c, n := classAt(s, end)
		if c&space == 0 {
			break
		}
		last = end
		end += n
	}
	if end == len(s) || last == at {
		return end
	}
	return last
}
