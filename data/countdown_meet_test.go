package data

import (
	"strings"
	"testing"
)

func TestCountdownMeet(t *testing.T) {
	c := Countdown{Numbers: 3, MinNumber: 1, MaxNumber: 25, MaxTarget: 100, Operators: "+-*", Style: "meet",
		Train: 2000, Test: 10, Seed: 1}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		in   Instance
		text string
	}{
		{Instance{[]int{20, 9, 24}, 35}, "make 35 from 20 9 24:| 20 9: 29 11 _ > 11 answer: ( 20 - 9 ) + 24"},
		{Instance{[]int{4, 12, 16}, 76},
			"make 76 from 4 12 16:| 4 12: 16 8 48 > 60 92 _; 4 16: 20 12 64 > 64 answer: ( 16 * 4 ) + 12"},
		{Instance{[]int{6, 2, 9}, 1}, "make 1 from 6 2 9:| 6 2: 8 4 12 > 8 answer: 9 - ( 6 + 2 )"},
	} {
		if got := meetPrompt(c, want.in) + "|" + meetSolution(c, want.in); got != want.text {
			t.Errorf("got  %s\nwant %s", got, want.text)
		}
	}
	tok, err := NewChatTokenizer("countdown")
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.Len(Train) {
		e := c.Example(Train, i)
		if r := c.Reward(Train, i, e.Completion); r != 1 {
			t.Fatalf("%q is judged %v", e.Prompt+e.Completion, r)
		}
		ids := append(tok.Encode(e.Prompt), tok.Encode(e.Completion)...)
		if got := tok.Decode(ids); got != e.Prompt+e.Completion || len(ids) > 60 {
			t.Fatalf("%d tokens that read %q", len(ids), got)
		}
	}
	c.Numbers = 4
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "meet") {
		t.Errorf("four numbers: %v", err)
	}
}
