package data

import (
	"errors"
	"fmt"
	"strings"
)

// pattern cuts text into pieces, each the first match of a regular expression after the piece before it.
type pattern interface {
	// next is the end, above at, of the piece that begins at s[at]; at < len(s), s is valid UTF-8.
	next(s string, at int) int
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

// patterns are the regular expressions of Split pre-tokenizers that can be cut by, letter for letter. An expression
// that is not here is refused: one that is nearly right gives other tokens on rare text, which nobody notices.
var patterns = map[string]pattern{
	// Qwen2, Qwen2.5, Qwen3
	qwen2Regex: &wordPattern{word: letter, punctuation: plainPunctuation, apart: true, digits: 1, tail: "\r\n"},
	// Qwen3.5
	qwen35Regex: &wordPattern{word: letter | mark, punctuation: plainPunctuation | mark, apart: true, digits: 1,
		tail: "\r\n"},
	// cl100k_base, Llama 3, GLM-4, GLM-5
	cl100kRegex: &wordPattern{word: letter, punctuation: plainPunctuation, apart: true, digits: 3, tail: "\r\n"},
	// o200k_base, gpt-oss
	o200kRegex: &wordPattern{punctuation: plainPunctuation, cased: true, attached: true, digits: 3, tail: "\r\n/"},
	// Tekken: Mistral Nemo, Nemotron
	tekkenRegex: &wordPattern{punctuation: plainPunctuation, cased: true, digits: 1, tail: "\r\n/"},
}

// preTokenizer cuts text by its patterns, each cutting the pieces of the one before it.
type preTokenizer struct {
	patterns  []pattern
	spaceStep int // pieces that reach this step get a space in front, unless they begin with one; -1: none
}

// each calls f for the pieces of s in order; nothing is left out.
func (p *preTokenizer) each(s string, f func(piece string)) { p.cut(s, 0, f) }

func (p *preTokenizer) cut(s string, step int, f func(piece string)) {
	if s == "" {
		return
	}
	if step == p.spaceStep && !strings.HasPrefix(s, " ") {
		s = " " + s
	}
	if step == len(p.patterns) {
		f(s)
		return
	}
	for at := 0; at < len(s); {
		end := p.patterns[step].next(s, at)
		p.cut(s[at:end], step+1, f)
		at = end
	}
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
			p.patterns = append(p.patterns, split)
		case step.Type == "ByteLevel" && last:
			return p, p.addByteLevel(&step)
		default:
			return nil, fmt.Errorf("%q as step %d of %d: only Splits and then ByteLevel can be read", step.Type, i+1,
				len(steps))
		}
	}
	return nil, errors.New("an empty Sequence: only byte-level tokenizers can be read, whose last step is ByteLevel")
}

// split finds the pattern. Pieces are whole matches, so keeping matches as pieces (Isolated) and removing what lies
// between them (Removed, inverted) are the same.
func (c *component) split() (pattern, error) {
	isolated := c.Behavior == "Isolated" && !c.Invert
	if kept := c.Behavior == "Removed" && c.Invert; !isolated && !kept {
		return nil, fmt.Errorf("Split with behavior %q, invert %v: only Isolated, not inverted, can be read",
			c.Behavior, c.Invert)
	}
	if c.Pattern.Regex == nil {
		return nil, errors.New("Split without a Regex: only the patterns of known families can be read")
	}
	p, ok := patterns[*c.Pattern.Regex]
	if !ok {
		return nil, fmt.Errorf("Split by the unknown pattern %q: only those of Qwen2 to 3.5, Llama 3 and GLM, o200k "+
			"and Tekken can be read", *c.Pattern.Regex)
	}
	return p, nil
}

func (p *preTokenizer) addByteLevel(c *component) error {
	if c.AddPrefixSpace == nil {
		return errors.New("ByteLevel without add_prefix_space: say true or false")
	}
	p.spaceStep = -1
	if *c.AddPrefixSpace {
		p.spaceStep = len(p.patterns)
	}
	if c.UseRegex == nil || *c.UseRegex { // the default is true
		p.patterns = append(p.patterns, gpt2Pattern{})
	}
	return nil
}
