package data

import (
	"strings"
	"testing"
)

func TestCountdownScore(t *testing.T) {
	c := small()
	c.Operators = "+-*/"
	for _, k := range []struct {
		answer string
		want   float64
	}{
		{"7*4+2", 1},
		{" ( 7 ) * 4 +2 \n\n", 1},
		{"2+4*7", 1},
		{"7*4=28\n28+2=30\n7*4+2", 1},
		{"7*4+2 = 30", 1},
		{"so answer: 4*7+2", 1},
		{"I think <answer>1</answer> no, <answer>4*7+2</answer> it is", 1},
		{"answer: 1\n<answer>4*7+2</answer>", 1},
		{"4*7+2\nanswer: 4*7-2", 0},
		{"<answer>4*7+2", 0},            // cut off
		{"7*4+2=31", 0},                 // says something else
		{"7*4+2=30=30", 0},              //
		{"7*4+2+2", 0},                  // 2 twice
		{"30", 0},                       // not given
		{"7*4", 0},                      // 28
		{"7*4+1*2", 0},                  // 1 not given
		{"7*4+02", 0},                   //
		{"7*4+2)", 0},                   //
		{"(7*4+2", 0},                   //
		{"7*4+", 0},                     //
		{"-7*4+2", 0},                   // no unary minus
		{"7 4+2", 0},                    //
		{"7*4+2\x00", 0},                //
		{"7*4+2 by luck", 0},            //
		{"7**4+2", 0},                   //
		{"74/(2-2)", 0},                 //
		{"7/(4-4)", 0},                  //
		{"", 0},                         //
		{"\n", 0},                       //
		{strings.Repeat("(", 1e6), 0},   // must not exhaust the stack
		{"answer:" + "７*4+2", 0},        // full-width digit
		{"99999999999999999999*4+2", 0}, //
	} {
		if got := c.Score([]int{4, 7, 2}, 30, k.answer); got != k.want {
			t.Errorf("%.60q scores %v, want %v", k.answer, got, k.want)
		}
	}
}

// Values are rational: 8 / (3 - 8/3) is 24 exactly.
func TestCountdownScoreRational(t *testing.T) {
	c := small()
	c.Operators = "+-*/"
	if got := c.Score([]int{8, 3, 8, 3}, 24, "8/(3-8/3)"); got != 1 {
		t.Errorf("8/(3-8/3) scores %v", got)
	}
	c.Operators = "+-*"
	if got := c.Score([]int{8, 4}, 2, "8/4"); got != 0 {
		t.Errorf("a division scores %v where it is not allowed", got)
	}
}

func TestCountdownFormatCredit(t *testing.T) {
	c := small()
	c.Operators, c.FormatCredit = "+-*/", 0.25
	for answer, want := range map[string]float64{
		"7*4+2": 1, "7*4": 0.25, "7/(4-4)": 0, "7/(4-4": 0, "4/(7-7)": 0, "2/(4-2*2)": 0, "4/(2-2)": 0, "7+4+2": 0.25,
		"7+": 0, "5": 0,
	} {
		if got := c.Score([]int{4, 7, 2}, 30, answer); got != want {
			t.Errorf("%q scores %v, want %v", answer, got, want)
		}
	}
	if got := c.Score([]int{4, 4, 7}, 30, "7/(4-4)"); got != 0.25 {
		t.Errorf("a division by zero of the right form scores %v", got)
	}
}

func FuzzCountdownAnswer(f *testing.F) {
	for _, s := range []string{"7*4+2", "((7))*4+2", "7/(4-4)", "answer: 7", "<answer>7*4+2</answer>", "7*4+2=30",
		"(((", "7*4\n2", "\x00"} {
		f.Add(s, 4, 7, 2, 30)
	}
	c := small()
	c.Operators, c.FormatCredit = "+-*/", 0.5
	f.Fuzz(func(t *testing.T, answer string, x, y, z, target int) {
		r := c.Score([]int{x, y, z}, target, answer)
		if r != 0 && r != 0.5 && r != 1 {
			t.Fatalf("%q scores %v", answer, r)
		}
		if r == 1 && c.Score([]int{x, y, z}, target+1, answer) == 1 {
			t.Fatalf("%q scores for two targets", answer)
		}
		if again := c.Score([]int{z, x, y}, target, answer); again != r {
			t.Fatalf("%q scores %v, and %v with the numbers in another order", answer, r, again)
		}
	})
}
