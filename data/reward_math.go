package data

import (
	"slices"
	"strings"
)

// maxMath bounds an answer that is read as mathematics, in bytes; a longer one is compared as text.
const maxMath = 1000

// mathEqual says whether a text ends in the wanted answer. Its final answer is what the last \boxed{} holds, else what
// follows the last "####" in its line, else the last line that is not blank, or the last expression in that line (see
// [lastExpression]); an empty or unclosed box is no answer. The wanted answer may be a worked solution with a box or
// "####" too. Both are written plainly ([plainMath]) and compared:
//
//   - expressions by value, exactly ([mathParser]): 0.5 = 1/2 = \frac{1}{2} = 50%
//   - lists "a, b" element by element; brackets must be the same, or be missing on one side; in braces order does not
//     count. In brackets a comma always
//     separates; elsewhere one before just three digits groups thousands: 100,200 is a number, (100,200) and 100, 200
//     are lists
//   - all else as text without blanks, braces and case
//
// "x =" before an answer does not count.
func mathEqual(text, want string) bool {
	if final, ok := marked(want); ok {
		want = final
	}
	w := readMath(plainMath(want))
	if final, ok := marked(text); ok {
		return readMath(plainMath(final)).equal(w)
	}
	if strings.Contains(text, boxed) || strings.Contains(text, hashes) {
		return false
	}
	line, _ := FinalLine.find(text, "")
	line = plainMath(line)
	if readMath(line).equal(w) {
		return true
	}
	last, ok := lastExpression(line)
	return ok && readMath(last).equal(w)
}

const hashes = "####"

func marked(text string) (string, bool) {
	if strings.Contains(text, boxed) {
		return FinalBoxed.find(text, "")
	}
	return FinalAfter.find(text, hashes)
}

// mathValue is an answer: items are values in lowest terms, or text. One that is not a list has one item and no
// brackets.
type mathValue struct {
	brackets string // "" or two of ()[]{}
	items    []string
}

// equal compares; nothing is equal to an empty answer.
func (v mathValue) equal(w mathValue) bool {
	if v.brackets != w.brackets && v.brackets != "" && w.brackets != "" {
		return false
	}
	a, b := v.items, w.items
	if v.brackets == "{}" || w.brackets == "{}" {
		a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	}
	return slices.Equal(a, b) && !slices.Contains(a, "")
}

// readMath reads a plain answer.
func readMath(s string) mathValue {
	s = withoutName(strings.TrimSpace(s))
	if inside, brackets, ok := bracketed(s); ok {
		if items := splitList(inside); len(items) > 1 {
			return mathValue{brackets, mathItems(items, false)}
		}
	}
	if v := evalMath(s, true); v != nil {
		return mathValue{items: []string{v.RatString()}}
	}
	return mathValue{items: mathItems(splitList(s), true)}
}

func mathItems(items []string, thousands bool) []string {
	forms := make([]string, len(items))
	for i, s := range items {
		s = withoutName(strings.TrimSpace(s))
		if v := evalMath(s, thousands); v != nil {
			forms[i] = v.RatString()
		} else {
			forms[i] = textForm(s)
		}
	}
	return forms
}

// withoutName cuts "x =" off, also "\theta =" and "f(x) =".
func withoutName(s string) string {
	name, value, ok := strings.Cut(s, "=")
	name = strings.TrimSpace(name)
	if !ok || name == "" || len(name) > 20 || strings.ContainsAny(name, ",<>!+-*/^") || isDigit(name[0]) ||
		nesting(name[0]) != 0 || strings.Contains(value, "=") {
		return s
	}
	return strings.TrimSpace(value)
}

// bracketed is what one pair of brackets around all of s holds. The two may differ, as in the interval [0, 1).
func bracketed(s string) (inside, brackets string, ok bool) {
	if s == "" || !strings.ContainsRune("([{", rune(s[0])) {
		return "", "", false
	}
	depth := 0
	for i := range len(s) {
		if depth += nesting(s[i]); depth == 0 {
			return s[1:i], s[:1] + s[i:i+1], i == len(s)-1
		}
	}
	return "", "", false
}

// nesting is how a byte changes the depth of brackets.
func nesting(c byte) int {
	switch c {
	case '(', '[', '{':
		return 1
	case ')', ']', '}':
		return -1
	}
	return 0
}

// splitList cuts at commas that are in no brackets.
func splitList(s string) (items []string) {
	depth, from := 0, 0
	for i := range len(s) {
		depth += nesting(s[i])
		if s[i] == ',' && depth == 0 {
			items, from = append(items, s[from:i]), i+1
		}
	}
	return append(items, s[from:])
}

// textForm is how answers that are no expressions are compared.
func textForm(s string) string {
	return strings.ToLower(strings.NewReplacer(" ", "", "\t", "", "{", "", "}", "").Replace(s))
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
