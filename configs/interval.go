package configs

import (
	"math"
	"strconv"
	"strings"
)

// interval is the range of a number; the zero value holds every number.
type interval struct {
	set              bool
	low, high        float64
	openLow, openTop bool
}

// parseInterval reads "[0,1)"; an empty bound is none.
func parseInterval(text string) interval {
	low, high, ok := strings.Cut(text[1:len(text)-1], ",")
	if !ok {
		panic("configs: range " + text)
	}
	return interval{
		set: true, low: bound(low, math.Inf(-1)), high: bound(high, math.Inf(1)),
		openLow: text[0] == '(', openTop: text[len(text)-1] == ')',
	}
}

func bound(text string, none float64) float64 {
	if text == "" {
		return none
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic("configs: range: " + err.Error())
	}
	return x
}

// holds is false for NaN, and for infinities where a bound is open.
func (r interval) holds(x float64) bool {
	if !r.set {
		return true
	}
	above := x > r.low || !r.openLow && x == r.low
	below := x < r.high || !r.openTop && x == r.high
	return above && below
}

func (r interval) String() string {
	low := "at least " + plain(r.low)
	if r.openLow {
		low = "more than " + plain(r.low)
	}
	switch {
	case math.IsInf(r.high, 1):
		return low
	case r.openTop:
		return low + " and less than " + plain(r.high)
	}
	return low + " and at most " + plain(r.high)
}

// plain is a number without an exponent.
func plain(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
