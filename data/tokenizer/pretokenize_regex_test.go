package tokenizer

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// familyRegexes are the expressions that have a scanner, and their names.
var familyRegexes = map[string]string{"qwen2": qwen2Regex, "qwen3.5": qwen35Regex, "cl100k": cl100kRegex,
	"o200k":  o200kRegex,
	"tekken": tekkenRegex, "gpt2": gpt2Regex}

func scannerOf(regex string) scanner {
	if regex == gpt2Regex {
		return gpt2End
	}
	return scanners[regex]
}

func piecesOf(s splitter, text string) (pieces []string) {
	s.split(text, func(piece string) { pieces = append(pieces, piece) })
	return pieces
}

func mustRegex(t testing.TB, pattern string, between bool) *regexSplitter {
	t.Helper()
	r, err := newRegexSplitter(pattern, between)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// alphabet has characters of each class, and those that case folding and white space may treat in their own way.
var alphabet = []rune("aAzZſKéÉßǅʰ中文क्षि\u0301\u0300²½٣1239'’'ssStTrReEvVmMlLdD " +
	"\t\r\n\v\f\u0085\u00a0\u1680\u180e\u2003" +
	"\u2028\u2029\u200b\u3000\ufeff\ufffd.,;-_/\\!?#$%&()[]{}|^~`\"<>=+*@\x00\x1c\x1f\x7f😀𝐀𐐀\U000e0041\U0010ffff")

// The scanners written by hand cut as their expressions do.
func TestScannersAgainstRegex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range slices.Sorted(maps.Keys(familyRegexes)) {
		re, scan := mustRegex(t, familyRegexes[name], true), scannerOf(familyRegexes[name])
		for range 20000 {
			text := make([]rune, r.IntN(24))
			for i := range text {
				switch r.IntN(8) {
				case 0:
					text[i] = ' '
				case 1:
					text[i] = '\n'
				case 2: // any character
					if text[i] = rune(r.IntN(0x30000)); !utf8.ValidRune(text[i]) {
						text[i] = 'x'
					}
				default:
					text[i] = alphabet[r.IntN(len(alphabet))]
				}
			}
			if got, want := piecesOf(scan, string(text)), piecesOf(re, string(text)); !slices.Equal(got, want) {
				t.Fatalf("%s, %+q:\nscanner %+q\nregex   %+q", name, string(text), got, want)
			}
		}
	}
}

func FuzzScanners(f *testing.F) {
	f.Add("I'LL 'ſ 1234 we'LLx\n\n  b HELLOworld's a//\n/b")
	f.Add("\u0301AB文CD क्षि\u3000\u3000b\u00a0 \u0085")
	regexes := map[string]*regexSplitter{}
	for name, pattern := range familyRegexes {
		regexes[name] = mustRegex(f, pattern, true)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "\ufffd")
		for name, re := range regexes {
			if got, want := piecesOf(scannerOf(familyRegexes[name]), text), piecesOf(re, text); !slices.Equal(got,
				want) {
				t.Errorf("%s, %+q:\nscanner %+q\nregex   %+q", name, text, got, want)
			}
		}
	})
}

// Any pattern gives one line of error, or pieces that are parts of the text in order.
func FuzzRegexSplitter(f *testing.F) {
	for _, pattern := range familyRegexes {
		f.Add(pattern, "it's 12 \n a", true)
	}
	f.Add(`(?=[A-Z])|^`, "someWords\nmore", false)
	f.Fuzz(func(t *testing.T, pattern, text string, between bool) {
		if len(pattern) > 60 || len(text) > 20 || strings.Count(pattern, "*")+strings.Count(pattern, "+")+
			strings.Count(pattern, "{") > 3 {
			return // backtracking takes time that grows exponentially with these
		}
		r, err := newRegexSplitter(pattern, between)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		text = strings.ToValidUTF8(text, "\ufffd")
		pieces := piecesOf(r, text)
		if between && strings.Join(pieces, "") != text {
			t.Errorf("%q: the pieces of %q are %q", pattern, text, pieces)
		}
		rest := text
		for _, p := range pieces {
			at := strings.Index(rest, p)
			if p == "" || at < 0 {
				t.Fatalf("%q: the pieces of %q are %q", pattern, text, pieces)
			}
			rest = rest[at+len(p):]
		}
	})
}

func TestRegexSplitter(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		between       bool
		want          []string
	}{
		{`\d+`, "a12b3", true, []string{"a", "12", "b", "3"}},
		{`\d+`, "a12b3", false, []string{"12", "3"}},
		{`\d+`, "", true, nil},
		{`(?=[A-Z])`, "someMoreWords", true, []string{"some", "More", "Words"}}, // an empty match cuts
		{`(?=[A-Z])`, "someMoreWords", false, nil},
		{`é+|中`, "aééb中中", true, []string{"a", "éé", "b", "中", "中"}},
		{`(?<=a)b`, "abb", true, []string{"a", "b", "b"}},
		{`^-+$`, "a\n--\nb", true, []string{"a\n", "--", "\nb"}}, // ^ and $ are those of lines
		{`(?i:'s)`, "a'Sb", true, []string{"a", "'S", "b"}},
		{`'(?i:[sdmt]|ll)`, "a'ſ'lLs", true, []string{"a", "'ſ", "'lL", "s"}},
		{`\s`, "a\u00a0b", true, []string{"a", "\u00a0", "b"}}, // not ASCII alone
	} {
		if got := piecesOf(mustRegex(t, c.pattern, c.between), c.text); !slices.Equal(got, c.want) {
			t.Errorf("%q of %q: %q, want %q", c.pattern, c.text, got, c.want)
		}
	}
	for pattern, want := range map[string]string{
		`a(`:                  "not a valid regular expression",
		"[\n":                 "not a valid regular expression",
		`\p{L}++`:             "not a valid regular expression",
		`\p{Nothing}`:         "not a valid regular expression",
		`[\p{L}&&[^\p{Han}]]`: "an intersection of classes (&&)",
		`[[:alpha:]]`:         "a POSIX class",
		`[a[bc]]`:             "a class inside a class",
		`(?m).+`:              "an inline option other than i",
		`(?i-s:.+)`:           "an inline option other than i",
	} {
		_, err := newRegexSplitter(pattern, true)
		checkError(t, err, want)
	}
}

// A tokenizer.json whose pattern has no scanner is read, with one note that names the file.
func TestUnknownPattern(t *testing.T) {
	defer func() { notes = os.Stderr }()
	var out bytes.Buffer
	notes = &out
	source := string(NewBytes(nil).source)
	path := filepath.Join(t.TempDir(), tokenizerName)
	write := func(pattern string) {
		text := strings.Replace(source, string(marshal(qwen2Regex)), string(marshal(pattern)), 1)
		if text == source {
			t.Fatal("the file has no pattern")
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`[a-z]+|[^a-z]`)
	for range 2 {
		tok, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Decode(tok.Encode("ab1 é")); got != "ab1 é" {
			t.Errorf("%q", got)
		}
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, path+": ") ||
		!strings.Contains(got, "[a-z]+|[^a-z]") {
		t.Errorf("note %q: want one line that names file and pattern", got)
	}
	write(`[a-`)
	_, err := Load(path)
	checkError(t, err, path, "pre_tokenizer", "[a-", "not a valid regular expression")
}
