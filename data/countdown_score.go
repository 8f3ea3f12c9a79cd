package data

import (
	"errors"
	"math/big"
	"strconv"
	"strings"
)

// Score checks an answer exactly: 1 if its final expression uses only the given numbers, each at most once, only the
// task's operators, and equals the target in rational arithmetic; FormatCredit if only the value is wrong; 0 otherwise.
//
// The final expression is what the last <answer></answer> holds, else what follows the last "answer:", else the last
// line that is not blank. It may be followed by "= target".
func (c Countdown) Score(numbers []int, target int, answer string) float64 {
	text := finalExpression(answer)
	if left, right, ok := strings.Cut(text, "="); ok {
		if strings.TrimSpace(right) != strconv.Itoa(target) {
			return 0
		}
		text = left
	}
	p := exprParser{text: text, operators: c.Operators, numbers: append([]int(nil), numbers...)}
	v, err := p.whole()
	switch {
	case errors.Is(err, errZero):
		return c.FormatCredit
	case err != nil:
		return 0
	case v.Cmp(big.NewRat(int64(target), 1)) != 0:
		return c.FormatCredit
	}
	return 1
}

func finalExpression(answer string) string {
	if i := strings.LastIndex(answer, "<answer>"); i >= 0 {
		inside, _, closed := strings.Cut(answer[i+len("<answer>"):], "</answer>")
		if closed {
			return inside
		}
		return "" // cut off before it was complete
	}
	if i := strings.LastIndex(answer, "answer:"); i >= 0 {
		return answer[i+len("answer:"):]
	}
	answer = strings.TrimSpace(answer)
	return answer[strings.LastIndexByte(answer, '\n')+1:]
}

var (
	errSyntax = errors.New("not an expression of the given numbers and operators")
	errZero   = errors.New("division by zero")
)

// exprParser evaluates, by recursive descent,
//
//	sum     = product { ("+" | "-") product }
//	product = factor { ("*" | "/") factor }
//	factor  = number | "(" sum ")"
//
// over blanks. Numbers are taken out of the given ones as they are met, so an expression is no larger than they allow.
type exprParser struct {
	text      string
	at        int
	operators string
	numbers   []int
	depth     int
	zero      bool // a divisor was 0; parsing goes on, to tell a wrong form from a wrong value
}

// maxNesting bounds parentheses, and with them the stack.
const maxNesting = 64

func (p *exprParser) whole() (*big.Rat, error) {
	v, err := p.sum()
	if err == nil && p.peek() != 0 {
		err = errSyntax
	}
	if err == nil && p.zero {
		err = errZero
	}
	return v, err
}

// peek skips blanks and looks at the next byte; 0 at the end.
func (p *exprParser) peek() byte {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
	if p.at == len(p.text) {
		return 0
	}
	if p.text[p.at] == 0 {
		return 1 // not the end; no rule takes it
	}
	return p.text[p.at]
}

func (p *exprParser) sum() (*big.Rat, error)     { return p.chain("+-", p.product) }
func (p *exprParser) product() (*big.Rat, error) { return p.chain("*/", p.factor) }

// chain reads operands joined by some operators, left to right.
func (p *exprParser) chain(operators string, operand func() (*big.Rat, error)) (*big.Rat, error) {
	v, err := operand()
	for err == nil {
		op := p.peek()
		if strings.IndexByte(operators, op) < 0 {
			break
		}
		if strings.IndexByte(p.operators, op) < 0 {
			return nil, errSyntax
		}
		p.at++
		var w *big.Rat
		if w, err = operand(); err == nil && !arithmetic(v, op, w) {
			p.zero = true
		}
	}
	return v, err
}

// arithmetic sets v to v op w, one of + - * /; false where it divides by 0, which leaves v.
func arithmetic(v *big.Rat, op byte, w *big.Rat) bool {
	switch op {
	case '+':
		v.Add(v, w)
	case '-':
		v.Sub(v, w)
	case '*':
		v.Mul(v, w)
	case '/':
		if w.Sign() == 0 {
			return false
		}
		v.Quo(v, w)
	}
	return true
}

func (p *exprParser) factor() (*big.Rat, error) {
	if p.peek() != '(' {
		return p.number()
	}
	if p.depth++; p.depth > maxNesting {
		return nil, errSyntax
	}
	p.at++
	v, err := p.sum()
	if err == nil && p.peek() != ')' {
		err = errSyntax
	}
	p.at++
	p.depth--
	return v, err
}

// number reads digits without a leading zero and takes the number out of those left.
func (p *exprParser) number() (*big.Rat, error) {
	start := p.at
	for p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9' {
		p.at++
	}
	digits := p.text[start:p.at]
	for i, n := range p.numbers {
		if digits == strconv.Itoa(n) {
			p.numbers = append(p.numbers[:i], p.numbers[i+1:]...)
			return big.NewRat(int64(n), 1), nil
		}
	}
	return nil, errSyntax
}
