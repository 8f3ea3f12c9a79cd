package tokenizer

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// regexSplitter cuts by a regular expression that no scanner is written for. Hugging Face's tokenizers runs these by
// Oniguruma with Ruby's syntax, regexp2 has that of .NET: the two agree on what pre-tokenizers use, and
// newRegexSplitter refuses what they read differently.
type regexSplitter struct {
	pattern  string
	compiled *regexp2.Regexp
	between  bool // keep the text between matches, as pieces of its own
}

// newRegexSplitter compiles a pattern. Its errors have one line and name the pattern.
func newRegexSplitter(pattern string, between bool) (*regexSplitter, error) {
	if form := differing(pattern); form != "" {
		return nil, fmt.Errorf("a Split by the pattern %q: %s is not supported", pattern, form)
	}
	// In Ruby's syntax ^ and $ always match at line ends. Not the option RE2: it makes \s and \d ASCII.
	re, err := regexp2.Compile(foldLongS(pattern), regexp2.Multiline)
	if err != nil {
		reason := strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "error parsing regexp: ")), " ")
		return nil, fmt.Errorf("a Split by the pattern %q, which is not a valid regular expression: %.200s", pattern,
			reason)
	}
	return &regexSplitter{pattern, re, between}, nil
}

var (
	options    = regexp.MustCompile(`\(\?([a-zA-Z-]+)[:)]`)
	posixClass = regexp.MustCompile(`\[:\^?[a-z]+:\]`)
)

// differing names what regexp2 reads as something else than Oniguruma does, "" if the pattern has nothing of the kind.
func differing(pattern string) string {
	for _, o := range options.FindAllStringSubmatch(pattern, -1) {
		if strings.Trim(o[1], "i-") != "" {
			return "an inline option other than i"
		}
	}
	switch {
	case posixClass.MatchString(pattern):
		return "a POSIX class such as [:alpha:]"
	case strings.Contains(pattern, "&&"):
		return "an intersection of classes (&&)"
	case nestedClass(pattern):
		return "a class inside a class"
	}
	return ""
}

// folded is a group without regard to case that has no escape, range or group inside, such as (?i:'s|'t) or
// (?i:[sdmt]|ll).
var folded = regexp.MustCompile(`\(\?i:[^()\\-]*\)`)

// foldLongS lets s match ſ (U+017F) too in folded groups: Oniguruma folds case by Unicode's table, .NET by lower case,
// where ſ is a letter of its own. The Kelvin sign has the lower case k.
func foldLongS(pattern string) string {
	return folded.ReplaceAllStringFunc(pattern, func(group string) string {
		var b strings.Builder
		inside := false // a class
		for _, r := range group {
			switch {
			case r == '[' || r == ']':
				inside = r == '['
				b.WriteRune(r)
			case r != 's' && r != 'S':
				b.WriteRune(r)
			case inside:
				b.WriteString("sſ")
			default:
				b.WriteString("[sſ]")
			}
		}
		return b.String()
	})
}

// nestedClass reports an unescaped [ between brackets: a union to Oniguruma, a character to .NET.
func nestedClass(pattern string) bool {
	inside := false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '[' && inside:
			return true
		case c == '[':
			inside = true
		case c == ']':
			inside = false
		}
	}
	return false
}

// split cuts at the matches, in order. Empty matches cut too.
func (r *regexSplitter) split(s string, f func(piece string)) {
	runes := []rune(s)
	at, atRune := 0, 0 // the end of the last match, in bytes and in characters
	m, err := r.compiled.FindRunesMatch(runes)
	for ; m != nil && err == nil; m, err = r.compiled.FindNextMatch(m) {
		from := at + width(runes[atRune:m.Index])
		to := from + width(runes[m.Index:m.Index+m.Length])
		if r.between && from > at {
			f(s[at:from])
		}
		if to > from {
			f(s[from:to])
		}
		at, atRune = to, m.Index+m.Length
	}
	if err != nil {
		panic(fmt.Sprintf("tokenizer: pattern %q: %v", r.pattern, err)) // regexp2 fails on timeouts alone, and has none
	}
	if r.between && at < len(s) {
		f(s[at:])
	}
}

// width is the length in bytes of characters.
func width(runes []rune) (n int) {
	for _, r := range runes {
		n += utf8.RuneLen(r)
	}
	return n
}

var (
	notes io.Writer = os.Stderr
	noted sync.Map  // files whose note was written
)

// noteUnknown writes, once for a file, that its pattern runs by a general engine.
func noteUnknown(path, pattern string) {
	if _, done := noted.LoadOrStore(path, true); !done {
		fmt.Fprintf(notes, "%s: the pre-tokenizer pattern %q is not one of Qwen2 to 3.5, Llama 3 and GLM, o200k "+
			"or Tekken: "+
			"it runs by a general regular expression engine, slower and not compared with Hugging Face's tokenizers\n",
			path, pattern)
	}
}
