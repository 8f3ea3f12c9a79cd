package data

import (
	"math/big"
	"strings"
)

// mathParser evaluates an expression in rational numbers, by recursive descent:
//
//	sum     = product { ("+" | "-") product }
//	product = sign { ("*" | "/") sign }
//	sign    = { "+" | "-" } power
//	power   = percent [ "^" sign ]                     -2^2 is -4, 2^3^2 is 2^9; exponents are integers
//	percent = primary { "%" }                          a hundredth
//	primary = number [ frac ] | frac | "(" sum ")" | "{" sum "}" | "[" sum "]"
//	frac    = "\frac" arg arg                          after an integer it is added: 1\frac{1}{2} is 3/2
//	arg     = "{" sum "}" | digit
//	number  = digits [ "." digits ] | "." digits       groups of three may be set off by commas: 1,234,567.5
//
// over blanks, of which none stands in a number. What is no expression, divides by zero or grows too large gives nil.
type mathParser struct {
	text      string
	at        int
	depth     int
	thousands bool // commas may group digits
}

// maxBits bounds numerators and denominators, maxPower exponents.
const (
	maxBits  = 4096
	maxPower = 4096
)

func evalMath(text string, thousands bool) *big.Rat {
	if len(text) > maxMath {
		return nil
	}
	p := mathParser{text: text, thousands: thousands}
	v := p.sum()
	if p.peek() != 0 {
		return nil
	}
	return v
}

// peek skips blanks and looks at the next byte; 0 at the end. No rule takes a byte 0 in the text, which then is not all
// read.
func (p *mathParser) peek() byte {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t') {
		p.at++
	}
	switch {
	case p.at == len(p.text):
		return 0
	case p.text[p.at] == 0:
		return 1
	}
	return p.text[p.at]
}

// take skips a byte if it is next.
func (p *mathParser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.at++
	return true
}

func (p *mathParser) sum() *big.Rat     { return p.chain("+-", p.product) }
func (p *mathParser) product() *big.Rat { return p.chain("*/", p.sign) }

// chain reads operands joined by some operators, left to right.
func (p *mathParser) chain(operators string, operand func() *big.Rat) *big.Rat {
	v := operand()
	for v != nil {
		op := p.peek()
		if strings.IndexByte(operators, op) < 0 {
			break
		}
		p.at++
		v = operate(v, op, operand())
	}
	return v
}

// operate is v op w.
func operate(v *big.Rat, op byte, w *big.Rat) *big.Rat {
	if w == nil || !arithmetic(v, op, w) || bitsOf(v) > maxBits {
		return nil
	}
	return v
}

func bitsOf(v *big.Rat) int { return max(v.Num().BitLen(), v.Denom().BitLen()) }

func (p *mathParser) sign() *big.Rat {
	negative := false
	for {
		switch {
		case p.take('-'):
			negative = !negative
		case !p.take('+'):
			v := p.power()
			if v != nil && negative {
				v.Neg(v)
			}
			return v
		}
	}
}

func (p *mathParser) power() *big.Rat {
	v := p.percent()
	if v == nil || !p.take('^') {
		return v
	}
	if p.depth++; p.depth > maxNesting {
		return nil
	}
	e := p.sign()
	p.depth--
	if e == nil || !e.IsInt() || e.Num().BitLen() > 32 {
		return nil
	}
	return raise(v, e.Num().Int64())
}

// raise is v^e; 0^0 is 1.
func raise(v *big.Rat, e int64) *big.Rat {
	num, den := v.Num(), v.Denom()
	if e < 0 {
		if e, num, den = -e, den, num; den.Sign() == 0 {
			return nil
		}
	}
	if e > maxPower || int64(bitsOf(v))*e > maxBits {
		return nil
	}
	n := big.NewInt(e)
	return new(big.Rat).SetFrac(new(big.Int).Exp(num, n, nil), new(big.Int).Exp(den, n, nil))
}

func (p *mathParser) percent() *big.Rat {
	v := p.primary()
	for v != nil && p.take('%') {
		v = operate(v, '/', big.NewRat(100, 1))
	}
	return v
}

func (p *mathParser) primary() *big.Rat {
	switch c := p.peek(); {
	case c == '(':
		return p.group('(', ')')
	case c == '{':
		return p.group('{', '}')
	case c == '[':
		return p.group('[', ']')
	case c == '\\':
		return p.frac()
	}
	v := p.number()
	if v != nil && v.IsInt() && p.peek() == '\\' {
		return operate(v, '+', p.frac())
	}
	return v
}

// group is a sum in brackets.
func (p *mathParser) group(open, end byte) *big.Rat {
	if p.depth++; p.depth > maxNesting || !p.take(open) {
		return nil
	}
	v := p.sum()
	p.depth--
	if v == nil || !p.take(end) {
		return nil
	}
	return v
}

func (p *mathParser) frac() *big.Rat {
	rest, ok := strings.CutPrefix(p.text[p.at:], `\frac`)
	if !ok {
		return nil
	}
	p.at = len(p.text) - len(rest)
	over := p.arg()
	if over == nil {
		return nil
	}
	return operate(over, '/', p.arg())
}

func (p *mathParser) arg() *big.Rat {
	if c := p.peek(); isDigit(c) {
		p.at++
		return big.NewRat(int64(c-'0'), 1)
	}
	return p.group('{', '}')
}

func (p *mathParser) number() *big.Rat {
	p.peek()
	rest := p.text[p.at:]
	n := digits(rest)
	for p.thousands && n > 0 && n < len(rest) && rest[n] == ',' && digits(rest[n+1:]) == 3 && grouped(rest[:n]) {
		n += 4
	}
	whole := n
	if n < len(rest) && rest[n] == '.' {
		if d := digits(rest[n+1:]); d > 0 {
			n += 1 + d
		}
	}
	if n == 0 {
		return nil
	}
	p.at += n
	places := max(0, n-whole-1)
	num, ok := new(big.Int).SetString(strings.NewReplacer(",", "", ".", "").Replace(rest[:n]), 10)
	if !ok {
		panic("data: " + rest[:n] + " is not a decimal number")
	}
	v := new(big.Rat).SetFrac(num, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(places)), nil))
	if bitsOf(v) > maxBits {
		return nil
	}
	return v
}

// digits counts those that s begins with.
func digits(s string) (n int) {
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	return n
}

// grouped says whether a comma and three digits may follow: one to three digits stand before the first comma.
func grouped(s string) bool {
	first, _, _ := strings.Cut(s, ",")
	return len(first) <= 3
}
