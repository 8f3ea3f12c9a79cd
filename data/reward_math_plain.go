package data

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// latexCommands are what stands for commands in plain notation; others stay.
var latexCommands = map[string]string{
	`\times`: "*", `\cdot`: "*", `\ast`: "*", `\div`: "/", `\frac`: `\frac`, `\dfrac`: `\frac`, `\tfrac`: `\frac`,
	`\cfrac`: `\frac`,
	`\left`:  "", `\right`: "", `\big`: "", `\Big`: "", `\bigl`: "", `\bigr`: "", `\displaystyle`: "", `\,`: "",
	`\;`: "", `\:`: "", `\!`: "", `\ `: " ", `\quad`: " ", `\qquad`: " ",
	`\%`: "%", `\$`: "", `\{`: "{", `\}`: "}", `\(`: " ", `\)`: " ", `\[`: " ", `\]`: " ", `\lbrace`: "{",
	`\rbrace`: "}",
	`\text`:   "", `\textbf`: "", `\textit`: "", `\mathrm`: "", `\mathbf`: "", `\mbox`: "", `\degree`: "",
}

// mathSymbols are other ways to write plain notation. Dollars are delimiters or a unit.
var mathSymbols = strings.NewReplacer("−", "-", "×", "*", "·", "*", "⋅", "*", "÷", "/", "\u00a0", " ", "\u2009", " ",
	"\u202f", " ", "$", "", "°", "",
	`^{\circ}`, "", `^\circ`, "", "{,}", ",", "`", "")

// plainMath writes a line of LaTeX, Markdown or text with + - * / ^ % \frac and brackets alone, without full stop at
// its end. What it does not know stays.
func plainMath(s string) string {
	s = mathSymbols.Replace(strings.TrimSpace(s))
	var b strings.Builder
	for s != "" {
		n := 1
		switch {
		case s[0] == '\\':
			n = commandLength(s)
			if plain, ok := latexCommands[s[:n]]; ok {
				b.WriteString(plain)
			} else {
				b.WriteString(s[:n])
			}
		case strings.HasPrefix(s, "**"):
			n = 2
			b.WriteString(stars(b.String(), s[2:]))
		default:
			b.WriteByte(s[0])
		}
		s = s[n:]
	}
	return strings.TrimSpace(strings.TrimRight(strings.TrimSpace(b.String()), "."))
}

// commandLength is that of the LaTeX command that s begins with: letters, or one byte.
func commandLength(s string) int {
	n := 1
	for n < len(s) && isLetter(s[n]) {
		n++
	}
	return min(max(n, 2), len(s))
}

// stars is what "**" means: a power between two numbers or brackets that it touches, else the bold type of Markdown,
// which is nothing.
func stars(before, after string) string {
	if before == "" || after == "" {
		return ""
	}
	last, next := before[len(before)-1], after[0]
	if (isDigit(last) || last == ')' || last == '}') && (isDigit(next) || next == '(' || next == '{' || next == '-') {
		return "^"
	}
	return ""
}

// lineEnd bounds the part of a line in which an expression is looked for, in bytes.
const lineEnd = 256

// lastExpression is the last part of a plain line that is an expression and touches no letter, digit or point; of
// several with one end, the longest. The "=" of an equation is in none, so of "2 + 3 = 5" it is "5".
func lastExpression(line string) (string, bool) {
	if len(line) > lineEnd {
		_, line, _ = strings.Cut(line[len(line)-lineEnd:], " ") // not in the middle of a number
	}
	for end := len(line); end > 0; end-- {
		if !mayEnd(line, end) {
			continue
		}
		for from := runStart(line, end); from < end; from++ {
			if mayStart(line, from) && evalMath(line[from:end], true) != nil {
				return line[from:end], true
			}
		}
	}
	return "", false
}

func mayEnd(line string, end int) bool {
	c := line[end-1]
	if !isDigit(c) && c != ')' && c != '}' && c != '%' {
		return false
	}
	after := line[end:]
	if len(after) > 1 && (after[0] == '.' || after[0] == ',') {
		return !isDigit(after[1])
	}
	r, _ := utf8.DecodeRuneInString(after)
	return !wordy(r)
}

func mayStart(line string, from int) bool {
	c := line[from]
	if c == ' ' {
		return false
	}
	before, _ := utf8.DecodeLastRuneInString(line[:from])
	return !isDigit(c) && c != '.' || !wordy(before) && before != '.'
}

// wordy reports whether the character next to a number makes it part of a word.
func wordy(r rune) bool {
	return r == '_' || unicode.In(r, unicode.Letter, unicode.Mark, unicode.Digit)
}

// runStart is where the signs of expressions that end at end begin.
func runStart(line string, end int) int {
	for end > 0 {
		const frac = `\frac`
		switch {
		case strings.IndexByte("0123456789 .,+-*/^(){}%", line[end-1]) >= 0:
			end--
		case strings.HasSuffix(line[:end], frac):
			end -= len(frac)
		default:
			return end
		}
	}
	return 0
}
