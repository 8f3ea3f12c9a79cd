package data

import (
	"fmt"
	"strings"
)

// The style "meet" for three numbers and + - *: for each pair, the values that it makes and the values that are needed
// with the third number, until one value is in both. Every slot has a fixed position, so that each depends on one or
// two properties of arithmetic.
//
//	make 35 from 20 9 24:| 20 9: 29 11 _ > 11 answer: ( 20 - 9 ) + 24
//
// For the pair x y and the third number z: x+y, |x-y|, x*y, then after ">" |T-z|, T+z, T/z. A slot without a value in 1
// ... max target + max number is "_", and so is T/z unless exact. The trace ends at the first needed value that the
// pair makes.

func meetPrompt(_ Countdown, in Instance) string {
	return fmt.Sprintf("make %d from %s:", in.Target, joinInts(in.Numbers, " "))
}

func meetSolution(c Countdown, in Instance) string {
	var b strings.Builder
	for i, p := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 2, 0}} {
		if i > 0 {
			b.WriteString(";")
		}
		x, y, z := in.Numbers[p[0]], in.Numbers[p[1]], in.Numbers[p[2]]
		fmt.Fprintf(&b, " %d %d:", x, y)
		if answer := meetPair(&b, c.MaxTarget+c.MaxNumber, in.Target, max(x, y), min(x, y), z); answer != "" {
			return b.String() + " answer: " + answer
		}
	}
	// three numbers are always joined as a pair and a third
	panic(fmt.Sprintf("data: countdown instance %v has no pair that meets", in))
}

// meetPair writes the slots of a pair, hi >= lo, and returns the answer where the pair and the third number z meet.
func meetPair(b *strings.Builder, limit, target, hi, lo, z int) string {
	slot := func(v int) bool {
		if v < 1 || v > limit {
			b.WriteString(" _")
			return false
		}
		fmt.Fprintf(b, " %d", v)
		return true
	}
	made := map[int]string{}
	for _, m := range []struct {
		value int
		op    string
	}{{hi + lo, "+"}, {hi - lo, "-"}, {hi * lo, "*"}} {
		if slot(m.value) && made[m.value] == "" {
			made[m.value] = fmt.Sprintf("( %d %s %d )", hi, m.op, lo)
		}
	}
	b.WriteString(" >")
	difference := fmt.Sprintf("%%s + %d", z)
	if target < z {
		difference = fmt.Sprintf("%d - %%s", z)
	}
	quotient := 0
	if target%z == 0 {
		quotient = target / z
	}
	for _, need := range []struct {
		value  int
		answer string
	}{{max(target-z, z-target), difference}, {target + z, fmt.Sprintf("%%s - %d", z)},
		{quotient, fmt.Sprintf("%%s * %d", z)}} {
		if slot(need.value) && made[need.value] != "" {
			return fmt.Sprintf(need.answer, made[need.value])
		}
	}
	return ""
}
