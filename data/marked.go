package data

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"lockstep/data/atomicfile"
	"lockstep/data/ordered"
)

// Marks are written around the targets of a sample when it is printed.
type Marks struct{ Open, Close string }

var (
	Brackets = Marks{"⟦", "⟧"}              // in plain text
	Green    = Marks{"\x1b[32m", "\x1b[0m"} // on a terminal
)

// Marked is the text of a sample with marks around its targets. The middle of a run of targets or of other tokens is
// left out where the run has more than most characters (0: no limit). Control characters other than newlines and tabs
// are escaped.
func (s Sample) Marked(c Codec, m Marks, most int) string {
	var b strings.Builder
	write := func(ids []int32, target bool) {
		if len(ids) == 0 {
			return
		}
		text := shortened(visible(c.Decode(ids)), most)
		if target {
			text = m.Open + text + m.Close
		}
		b.WriteString(text)
	}
	ids, learned := slices.Clone(s.IDs[:min(1, len(s.IDs))]), false
	for i, target := range s.Targets {
		id, is := target, target >= 0
		if !is && i+1 < len(s.IDs) {
			id = s.IDs[i+1]
		}
		if is != learned {
			write(ids, learned)
			ids, learned = nil, is
		}
		ids = append(ids, id)
	}
	write(ids, learned)
	return b.String()
}

// visible is text without characters that move a terminal's cursor or change its colours.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			fmt.Fprintf(&b, `\x%02x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// shortened leaves out the middle of a text of more than most characters; 0: no limit.
func shortened(text string, most int) string {
	runes := []rune(text)
	if most == 0 || len(runes) <= most {
		return text
	}
	return string(runes[:most/2]) + " ... " + string(runes[len(runes)-most/2:])
}

// SamplesOf are the samples of one line of a JSONL file, counted from 1; see [LoadJSONL].
func SamplesOf(path string, line int, o Options) ([]Sample, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	f, err := atomicfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, lines := newBuilder(o, path), 0
	err = eachLine(path, f, func(n int, _ []byte, d *ordered.Dict) error {
		if lines = n + 1; lines != line {
			return nil
		}
		return b.line(n, d)
	})
	if err == nil && line > lines {
		err = fmt.Errorf("%s has %d lines, want one of them", path, lines)
	}
	return b.d.samples, err
}

// Conversation is the first sample that was made of messages; false: there is none.
func (d *Dataset) Conversation() (Sample, bool) {
	if d.chat < 0 || d.chat >= len(d.samples) {
		return Sample{}, false
	}
	return d.samples[d.chat], true
}
