package tokenizer

import (
	"errors"
	"fmt"
	"strings"
)

// splitter cuts text, valid UTF-8, into pieces and calls f for them in order.
type splitter interface {
	split(s string, f func(piece string))
}

// scanner is a splitter written by hand. The pieces cover the text, each the first match of a regular expression after
// the piece before it: scanner returns the end, above at, of the piece that begins at s[at], at < len(s).
type scanner func(s string, at int) int

func (next scanner) split(s string, f func(piece string)) {
	for at := 0; at < len(s); {
		end := next(s, at)
		f(s[at:end])
		at = end
	}
}

const (
	contractionsApart = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|`
	contractionAfter  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`
	punctuationOn     = `| ?[^\s\p{L}\p{N}]+[\r\n]*`
	spaces            = `|\s*[\r\n]+|\s+(?!\S)|\s+`
	smallWord         = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
	capitalWord       = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
	slashed           = `| ?[^\s\p{L}\p{N}]+[\r\n/]*`

	qwen2Regex  = contractionsApart + `[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}` + punctuationOn + spaces
	qwen35Regex = contractionsApart + `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` + spaces
	cl100kRegex = contractionsApart + `[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}` + punctuationOn + spaces
	o200kRegex  = smallWord + contractionAfter + `|` + capitalWord + contractionAfter + `|\p{N}{1,3}` + slashed + spaces
	tekkenRegex = smallWord + `|` + capitalWord + `|\p{N}` + slashed + spaces
)

const plainPunctuation = space | letter | number

// scanners are the hand-written equivalents of the regular expressions of known families, by the text of the
// expression. Any other expression runs as a [regexSplitter], at a fifth of the speed.
var scanners = map[string]scanner{
	// Qwen2, Qwen2.5, Qwen3
	qwen2Regex: (&wordPattern{word: letter, punctuation: plainPunctuation, apart: true, digits: 1, tail: "\r\n"}).next,
	// Qwen3.5
	qwen35Regex: (&wordPattern{word: letter | mark, punctuation: plainPunctuation | mark, apart: true, digits: 1,
		tail: "\r\n"}).next,
	// cl100k_base, Llama 3, GLM-4, GLM-5
	cl100kRegex: (&wordPattern{word: letter, punctuation: plainPunctuation, apart: true, digits: 3, tail: "\r\n"}).next,
	// o200k_base, gpt-oss
	o200kRegex: (&wordPattern{punctuation: plainPunctuation, cased: true, attached: true, digits: 3,
		tail: "\r\n/"}).next,
	// Tekken: Mistral Nemo, Nemotron
	tekkenRegex: (&wordPattern{punctuation: plainPunctuation, cased: true, digits: 1, tail: "\r\n/"}).next,
}

// preTokenizer cuts text by its splitters, each cutting the pieces of the one before it.
type preTokenizer struct {
	splitters []splitter
	spaceStep int // pieces that reach this step get a space in front, unless they begin with one; -1: none
}

// each calls f for the pieces of s in order.
func (p *preTokenizer) each(s string, f func(piece string)) { p.cut(s, 0, f) }

func (p *preTokenizer) cut(s string, step int, f func(piece string)) {
	if s == "" {
		return
	}
	if step == p.spaceStep && !strings.HasPrefix(s, " ") {
		s = " " + s
	}
	if step == len(p.splitters) {
		f(s)
		return
	}
	p.splitters[step].split(s, func(piece string) { p.cut(piece, step+1, f) })
}

// newPreTokenizer reads a ByteLevel pre-tokenizer, or a Sequence of Splits that ends in one.
func newPreTokenizer(c *component) (*preTokenizer, error) {
	if c == nil {
		return nil, errors.New("none: only byte-level tokenizers can be read, whose last step is ByteLevel")
	}
	steps := []component{*c}
	if c.Type == "Sequence" {
		steps = c.PreTokenizers
	}
	p := &preTokenizer{}
	for i, step := range steps {
		last := i == len(steps)-1
		switch {
		case step.Type == "Split" && !last:
			split, err := step.split()
			if err != nil {
				return nil, err
			}
			p.splitters = append(p.splitters, split)
		case step.Type == "ByteLevel" && last:
			return p, p.addByteLevel(&step)
		default:
			return nil, fmt.Errorf("%q as step %d of %d: only Splits and then ByteLevel can be read", step.Type, i+1,
				len(steps))
		}
	}
	return nil, errors.New("an empty Sequence: only byte-level tokenizers can be read, whose last step is ByteLevel")
}

// split reads a Split, which keeps the matches of its pattern as pieces, and what lies between them (Isolated) or not
// (Removed, inverted). A scanner's matches leave nothing between them.
func (c *component) split() (splitter, error) {
	isolated := c.Behavior == "Isolated" && !c.Invert
	if kept := c.Behavior == "Removed" && c.Invert; !isolated && !kept {
		return nil, fmt.Errorf("a Split with behavior %q, invert %v: only Isolated, not inverted, can be read",
			c.Behavior, c.Invert)
	}
	if c.Pattern.Regex == nil {
		return nil, errors.New("a Split without a Regex: only regular expressions can be read")
	}
	if known, ok := scanners[*c.Pattern.Regex]; ok {
		return known, nil
	}
	return newRegexSplitter(*c.Pattern.Regex, isolated)
}

// unknown lists the patterns that no scanner is written for.
func (p *preTokenizer) unknown() (patterns []string) {
	for _, s := range p.splitters {
		if r, ok := s.(*regexSplitter); ok {
			patterns = append(patterns, r.pattern)
		}
	}
	return patterns
}

func (p *preTokenizer) addByteLevel(c *component) error {
	if c.AddPrefixSpace == nil {
		return errors.New("ByteLevel without add_prefix_space: say true or false")
	}
	p.spaceStep = -1
	if *c.AddPrefixSpace {
		p.spaceStep = len(p.splitters)
	}
	if c.UseRegex == nil || *c.UseRegex { // the default is true
		p.splitters = append(p.splitters, scanner(gpt2End))
	}
	return nil
}
