package data

import (
	"fmt"
	"slices"
	"strings"
)

// Countdown is the task of reaching a target from given numbers by arithmetic, each number used at most once. Instance
// i of a split is a function of (Seed, split, i) and of these settings; which split an instance may appear in is a
// function of the instance alone (see [Instance.Split]), so no instance is ever in both.
type Countdown struct {
	Numbers      int     // numbers of an instance, 2 to 6
	MinNumber    int     // smallest number, at least 1
	MaxNumber    int     // largest number, at most 1000
	MaxTarget    int     // targets are in [1, MaxTarget]
	Operators    string  // a subset of "+-*/"; a generated division is always exact
	Style        string  // how a solution is written, one of [CountdownStyles]; "" is "expression"
	Train, Test  int     // instances of each split
	Seed         uint64  // of the instances
	FormatCredit float64 // reward of a well-formed expression of the given numbers with a wrong value; 0: none
}

// The limits of the settings. Values above maxValue are not generated; it also keeps every product inside an int.
const (
	maxNumbers = 6
	maxNumber  = 1000
	maxValue   = 1 << 30
)

// Validate reports settings that make no instances, each with the setting's name.
func (c Countdown) Validate() error {
	switch {
	case c.Numbers < 2 || c.Numbers > maxNumbers:
		return fmt.Errorf("countdown: numbers is %d: want 2 to %d", c.Numbers, maxNumbers)
	case c.MinNumber < 1 || c.MaxNumber > maxNumber || c.MinNumber > c.MaxNumber:
		return fmt.Errorf("countdown: numbers from %d to %d: want a range inside 1 to %d", c.MinNumber, c.MaxNumber,
			maxNumber)
	case c.MaxTarget < 1 || c.MaxTarget > maxValue:
		return fmt.Errorf("countdown: max target is %d: want 1 to %d", c.MaxTarget, maxValue)
	case !validOperators(c.Operators):
		return fmt.Errorf("countdown: operators are %q: want some of + - * /, each once", c.Operators)
	case c.Train < 0 || c.Test < 0:
		return fmt.Errorf("countdown: %d train and %d test instances: want none or more", c.Train, c.Test)
	case !(c.FormatCredit >= 0 && c.FormatCredit < 1): // NaN too
		return fmt.Errorf("countdown: format credit is %v: want at least 0 and below 1", c.FormatCredit)
	}
	if _, ok := countdownStyles[c.style()]; !ok {
		return fmt.Errorf("countdown: style %q is unknown: want one of %s", c.Style, strings.Join(CountdownStyles(),
			", "))
	}
	if c.style() == "meet" && (c.Numbers != 3 || len(c.Operators) != 3 || strings.Contains(c.Operators, "/")) {
		return fmt.Errorf("countdown: style meet writes three numbers and the operators +-*, not %d numbers and %q",
			c.Numbers, c.Operators)
	}
	return c.probe()
}

func validOperators(ops string) bool {
	for i := range len(ops) {
		if strings.IndexByte("+-*/", ops[i]) < 0 || strings.IndexByte(ops[:i], ops[i]) >= 0 {
			return false
		}
	}
	return ops != ""
}

// probe reports settings under which instances are too rare: a few of each split must turn up within a small part of
// the draws that [Countdown.Instance] allows itself.
func (c Countdown) probe() error {
	for _, split := range []Split{Train, Test} {
		for i := range 8 {
			if _, ok := c.find(split, i, maxDraws/256); !ok {
				return fmt.Errorf("countdown: %d numbers from %d to %d with %q and targets up to %d give (almost) no "+
					"%s instances: widen a range",
					c.Numbers, c.MinNumber, c.MaxNumber, c.Operators, c.MaxTarget, split)
			}
		}
	}
	return nil
}

func (c Countdown) style() string {
	if c.Style == "" {
		return "expression"
	}
	return c.Style
}

// Len is the number of instances of a split.
func (c Countdown) Len(split Split) int {
	if split == Test {
		return c.Test
	}
	return c.Train
}

// Example is the prompt of instance i of a split and its worked solution in the task's style.
func (c Countdown) Example(split Split, i int) Example {
	in := c.Instance(split, i)
	s := countdownStyles[c.style()]
	return Example{Prompt: s.prompt(c, in), Completion: s.solution(c, in)}
}

// Reward is the score of an answer to instance i of a split.
func (c Countdown) Reward(split Split, i int, answer string) float64 {
	in := c.Instance(split, i)
	return c.Score(in.Numbers, in.Target, answer)
}

// CountdownStyles lists the styles of worked solutions, sorted.
func CountdownStyles() []string {
	var names []string
	for name := range countdownStyles {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
