package bench

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Span is a range of whole numbers from 1 on, both ends in it: "64..512" or "64" on a command line.
type Span struct{ Low, High int }

// String is as Set reads it.
func (s *Span) String() string {
	if s.Low == s.High {
		return strconv.Itoa(s.Low)
	}
	return fmt.Sprintf("%d..%d", s.Low, s.High)
}

// Set parses.
func (s *Span) Set(text string) error {
	low, high, two := strings.Cut(text, "..")
	if !two {
		high = low
	}
	a, err := strconv.Atoi(low)
	b, err2 := strconv.Atoi(high)
	if err != nil || err2 != nil || a < 1 || b < a {
		return fmt.Errorf("want a number above 0 or a range such as 64..512")
	}
	s.Low, s.High = a, b
	return nil
}

// Type names it in --help.
func (s *Span) Type() string { return "range" }

// draw is a number of the range, all as likely.
func (s *Span) draw(rng *rand.Rand) int { return s.Low + rng.IntN(s.High-s.Low+1) }
