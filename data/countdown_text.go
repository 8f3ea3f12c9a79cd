package data

import (
	"fmt"
	"strconv"
	"strings"
)

// countdownStyle writes an instance as a prompt and a worked solution that ends in its answer, on a line of its own.
type countdownStyle struct {
	prompt   func(Countdown, Instance) string
	solution func(Countdown, Instance) string
}

// countdownStyles, for the numbers 4 7 2 and the target 30 under "+-*":
//
//	expression  "4 7 2 = 30\n" -> "7*4+2"
//	steps       "4 7 2 = 30\n" -> "7*4=28,28+2=30\n7*4+2"
//	search      "4 7 2 = 30\n" -> "7+4=11 13 9 22,7-4=3 5 1 6,7*4=28 30\n7*4+2"
//	meet        "make 30 from 4 7 2:" -> " 4 7: 11 3 28 > 28 answer: ( 7 * 4 ) + 2", see [meetSolution]
//	chat        an English prompt for models that converse -> "<answer>7*4+2</answer>"
//
// A search names each first step and then what joining its result with the number left gives, until the target turns
// up.
var countdownStyles = map[string]countdownStyle{
	"expression": {compactPrompt, func(c Countdown, in Instance) string { return c.solution(in).String() }},
	"steps": {compactPrompt, func(c Countdown, in Instance) string {
		e := c.solution(in)
		return strings.Join(e.steps(), ",") + "\n" + e.String()
	}},
	"search": {compactPrompt, func(c Countdown, in Instance) string {
		t := trace{c: c, target: in.Target}
		found := t.search(leaves(in.Numbers))
		return t.text(found) + "\n" + found.String()
	}},
	"meet": {meetPrompt, meetSolution},
	"chat": {chatPrompt, func(c Countdown, in Instance) string {
		return "<answer>" + c.solution(in).String() + "</answer>"
	}},
}

// solution solves an instance that is solvable by construction.
func (c Countdown) solution(in Instance) *expr {
	e := c.solve(in.Numbers, in.Target)
	if e == nil {
		panic(fmt.Sprintf("data: countdown instance %v has no solution", in))
	}
	return e
}

func compactPrompt(_ Countdown, in Instance) string {
	return joinInts(in.Numbers, " ") + " = " + strconv.Itoa(in.Target) + "\n"
}

func chatPrompt(c Countdown, in Instance) string {
	return fmt.Sprintf("Write an expression that equals %d. Use the numbers %s, each at most once, with parentheses "+
		"and the operators %s. "+
		"End with the expression alone inside <answer></answer>.",
		in.Target, joinInts(in.Numbers, ", "), strings.Join(strings.Split(c.Operators, ""), " "))
}

func joinInts(v []int, sep string) string {
	words := make([]string, len(v))
	for i, n := range v {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, sep)
}
