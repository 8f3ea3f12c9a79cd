package data

import (
	"strings"
	"testing"
	"time"
)

func TestEvalMath(t *testing.T) {
	for text, want := range map[string]string{
		"42": "42", " 007 ": "7", "-5": "-5", "+5": "5", "--5": "5", "0.50": "1/2", ".25": "1/4", "1,234": "1234",
		"1,234,567.5": "2469135/2",
		"1+2*3":       "7", "(1+2)*3": "9", "1-2-3": "-4", "8/4/2": "1", "2*-3": "-6", "-2^2": "-4", "(-2)^2": "4",
		"2^3^2": "512", "2^-2": "1/4", "0^0": "1", "(1/2)^3": "1/8",
		"(-1/2)^-3": "-8", "50%": "1/2", "12.5%": "1/8", "50%%": "1/200", "10%^2": "1/100", `\frac{1}{2}`: "1/2",
		`-\frac{3}{4}`: "-3/4", `\frac12`: "1/2", `\frac1{20}`: "1/20",
		`\frac{\frac{1}{2}}{3}`: "1/6", `1\frac{1}{2}`: "3/2", `-1\frac{1}{2}`: "-3/2", "2^{10}": "1024",
		"[1+2]*{3}": "9",
	} {
		v := evalMath(text, true)
		got := ""
		if v != nil {
			got = v.RatString()
		}
		if got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{
		"", " ", "x", "2x", "1 2", "1/0", "1/(2-2)", "0^-1", "2^(1/2)", "(1", "1)", "(1]", "()", "1+", "*1", "1.",
		"1.2.3", "1,2", "1,23", "1234,567", "1,2345", "1,234,5", "1e5", "2^4096", "9^9^9",
		"1^99999999999", `\frac{1}`, `\frac{1}{0}`, `\frac`, `\fraction{1}{2}`, `\sqrt{4}`, "%", "5\x00", "0x10",
		strings.Repeat("(", 65) + "1" + strings.Repeat(")", 65),
		strings.Repeat("2^", 65) + "1", strings.Repeat("1", 1001), strings.Repeat("99999999*", 160) + "1",
	} {
		if v := evalMath(text, true); v != nil {
			t.Errorf("%q is %v, want no value", text, v)
		}
	}
	if v := evalMath("1,234", false); v != nil {
		t.Errorf("in brackets 1,234 is %v", v)
	}
}

func TestMathEqual(t *testing.T) {
	for _, k := range []struct {
		text, want string
		right      bool
	}{
		// where the answer stands
		{`so \boxed{1} or \boxed{\frac{1}{2}}.`, "0.5", true},
		{`so \boxed{\frac{1}{2}} or \boxed{1}.`, "0.5", false},
		{`\boxed{5} is not #### 6`, "5", true},
		{"2\n#### 72\nmore", "72", true},
		{"#### 71\n#### 72", "72", true},
		{"the answer is \\boxed{5", "5", false},
		{"5 \\boxed{}", "5", false},
		{"5\n####", "5", false},
		{"2 + 3 = 5", "5", true},
		{"It costs $1,234.50.", "1234.5", true},
		{"The answer is **42**.", "42", true},
		{"5 apples and 3 pears\n\n", "3", true},
		{"5 apples and 3 pears", "5", false},
		{"first 7\nthen 8", "7", false},
		{"Paris", "paris", true},
		{"It is Paris", "Paris", false},
		{"", "", false},
		{"", "0", false},
		{"x2", "2", false},
		{"x2 is 1.5kg", "5", false},
		{"the 3rd", "3", false},
		{"so -5", "-5", true},
		{"= 2 (1 + 2)", "3", true},
		{"is 12 / 4", "3", true},
		{`thus $x = \dfrac{3}{4}$.`, "0.75", true},
		// forms of the wanted answer
		{"18", "She sells 9 eggs for 9 * 2 = 18.\n#### 18", true},
		{`\boxed{7}`, `Thus the answer is \boxed{7}.`, true},
		// values
		{`\boxed{10,\!000}`, "10000", true}, {`\boxed{10{,}000}`, "10,000", true}, {`\boxed{50\%}`, "1/2", true},
		{`\boxed{50\%}`, "50", false},
		{`\boxed{2^{10}}`, "1024", true}, {`\boxed{3 \times 10^{2}}`, "300", true}, {`\boxed{90^\circ}`, "90", true},
		{`\boxed{−3}`, "-3", true}, {`\boxed{2**3}`, "8", true},
		{`\boxed{0.333}`, "1/3", false}, {`\boxed{x = 5}`, "5", true}, {`\boxed{5}`, "x=5", true},
		{`\boxed{f(x) = 5}`, "5", true}, {`\boxed{2x = 5}`, "5", false}, {`\boxed{x > 5}`, "5", false},
		// lists
		{`\boxed{(1, 2)}`, "(1,2)", true}, {`\boxed{(1, 2)}`, "1, 2", true}, {`\boxed{(1, 2)}`, "[1,2]", false},
		{`\boxed{(1, 2)}`, "(2,1)", false}, {`\boxed{(1, 2)}`, "(1, 2, 3)", false},
		{`\boxed{\{1, 2\}}`, `\{2,1\}`, true}, {`\boxed{\{1, 2\}}`, "2, 1", true}, {`\boxed{\{1, 1\}}`, `\{1\}`, false},
		{`\boxed{\left(\frac{1}{2}, 50\%\right)}`, "(0.5, 1/2)", true},
		{`\boxed{[0, 1)}`, "[0,1)", true}, {`\boxed{[0, 1)}`, "[0,1]", false}, {`\boxed{(100,200)}`, "(100, 200)",
			true}, {`\boxed{100,200}`, "100200", true}, {`\boxed{100, 200}`, "100200", false},
		{`\boxed{(0, \infty)}`, `(0,\infty)`, true}, {`\boxed{x = 1, y = 2}`, "1, 2", true},
		{`\boxed{(1,2),(3,4)}`, "(1,2),(3,4)", true}, {`\boxed{1,}`, "1,", false},
		// text
		{`\boxed{\text{Even}}`, "even", true}, {`\boxed{x^{2} + 1}`, "x^2+1", true}, {`\boxed{A}`, "B", false},
		{`\boxed{ }`, "", false}, {`\boxed{\sqrt{2}}`, `\sqrt{2}`, true},
	} {
		if got := mathEqual(k.text, k.want); got != k.right {
			t.Errorf("%q with %q: right is %t, want %t", k.text, k.want, got, k.right)
		}
	}
}

func TestLastExpression(t *testing.T) {
	for line, want := range map[string]string{
		"there are 3": "3", "a (1+2)*3 b": "(1+2)*3", "from 2 to 3": "3", "(5)": "(5)", "5 (five)": "5", ") 5": "5",
		"1.5.": "1.5", "v1.2.3 is 4": "4", "1 2 3": "3", "3 - 5 = -2": "-2",
		"\\frac{1}{2} of it": `\frac{1}{2}`, "50% off": "50%", "a-5": "-5", "7, 8": "8", "€5": "5", "5 €": "5",
		"5€": "5", "é5": "", "5é": "",
		"none": "", "": "", "5x": "", "v1.2.3": "", "((((": "",
		strings.Repeat("word ", 100) + "9": "9", "9 " + strings.Repeat("word ", 100): "", strings.Repeat("1", 300): "",
	} {
		got, ok := lastExpression(plainMath(line))
		if got != want || ok != (want != "") {
			t.Errorf("%.40q: %q, want %q", line, got, want)
		}
	}
}

// Hostile answers take no time to speak of.
func TestMathBounded(t *testing.T) {
	start := time.Now()
	for _, s := range []string{
		strings.Repeat("9^", 400) + "9", strings.Repeat("(", 1<<20), strings.Repeat("9*", 499) + "9",
		strings.Repeat("1/7+", 249) + "1", strings.Repeat("99999^9/", 124) + "1",
		strings.Repeat(`\frac{1}{`, 100) + "2", strings.Repeat("-", 1<<20) + "1", strings.Repeat("%", 1<<20),
		strings.Repeat("1)", 1<<19), strings.Repeat("9", 1<<20), strings.Repeat("**", 1<<19),
	} {
		mathEqual(s, "1")
		mathEqual(`\boxed{`+s+"}", s)
		mathEqual("x "+s, s)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}

// Whatever the texts: no panic, and what is right stays so when it is boxed, or the two change places.
func FuzzMathEqual(f *testing.F) {
	for _, s := range []string{"1/2", `\frac{1}{2}`, "(1, 2)", `\{1,2\}`, "[0,1)", "x = 5", "1,234.5%", "2^-3", "**5**",
		`\text{a}`, `1\frac12`, "(0,000+0)", "−3", "5.", "a, b", "#### 5", "\\", "\x00", "{,}"} {
		f.Add(s, "1")
		f.Add("so "+s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		mathEqual(a, b)
		v, w := readMath(plainMath(a)), readMath(plainMath(b))
		if v.equal(w) != w.equal(v) {
			t.Errorf("%q and %q: equal one way", a, b)
		}
		if len(v.items) == 0 {
			t.Errorf("%q has no item", a)
		}
		// a fraction may be longer than its decimals
		if x := evalMath(a, true); x != nil && len(x.RatString()) <= maxMath {
			if y := evalMath(x.RatString(), true); y == nil || y.Cmp(x) != 0 {
				t.Errorf("%q is %v, which reads as %v", a, x, y)
			}
			one := len(v.items) == 1 // in brackets commas part items: (1,000) has two
			if one && !mathEqual(boxed+a+"}", boxed+x.RatString()+"}") && !strings.Contains(a, boxed) &&
				braced(a+"}") == a {
				t.Errorf("%q in a box is not %v", a, x)
			}
		}
		if e, ok := lastExpression(a); ok && (evalMath(e, true) == nil || !strings.Contains(a, e)) {
			t.Errorf("%q ends in %q", a, e)
		}
	})
}

// A set is compared without order whichever side writes it as one, and brackets around one value say nothing.
func TestMathBrackets(t *testing.T) {
	for _, k := range []struct {
		text, want string
		right      bool
	}{
		{`\boxed{2, 1}`, `\{1, 2\}`, true}, {`\boxed{\{2, 1\}}`, `1, 2`, true}, {`\boxed{2, 1}`, "(1, 2)", false},
		{`\boxed{(2, 1)}`, `\{1, 2\}`, false}, // a pair is no set
		{`\boxed{(5)}`, "5", true}, {`\boxed{(5)}`, "[5]", true}, {`\boxed{5}`, `\{5\}`, true},
		{`\boxed{[5]}`, "(6)", false},
		{`\boxed{(1,234)}`, "1234", false}, // a pair too
		{`\boxed{(1, 2)}`, "(1, )", false}, {`\boxed{(1, )}`, "(1, )", false},
	} {
		if got := mathEqual(k.text, k.want); got != k.right {
			t.Errorf("%q with %q: right is %t, want %t", k.text, k.want, got, k.right)
		}
	}
}
