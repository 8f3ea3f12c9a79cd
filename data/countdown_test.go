package data

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func small() Countdown {
	return Countdown{Numbers: 3, MinNumber: 1, MaxNumber: 10, MaxTarget: 100, Operators: "+-*", Train: 1000, Test: 200,
		Seed: 1}
}

// canonical is the identity of a puzzle.
func canonical(in Instance) string {
	return fmt.Sprint(slices.Sorted(slices.Values(in.Numbers)), in.Target)
}

func TestCountdownInstances(t *testing.T) {
	train := map[string]bool{}
	c := small()
	for i := range 3000 {
		in := c.Instance(Train, i)
		train[canonical(in)] = true
		if in.Target < 1 || in.Target > c.MaxTarget || len(in.Numbers) != 3 || slices.Min(in.Numbers) < 1 ||
			slices.Max(in.Numbers) > 10 {
			t.Fatalf("instance %d is out of range: %v", i, in)
		}
	}
	test := map[string]bool{}
	other := c
	other.Seed = 2
	for i := range 500 {
		in := other.Instance(Test, i)
		test[canonical(in)] = true
		if train[canonical(in)] {
			t.Fatalf("test instance %v is in train", in)
		}
	}
	if len(train) < 1000 || len(test) < 150 {
		t.Fatalf("%d train and %d test puzzles differ: the draws repeat themselves", len(train), len(test))
	}
}

// An instance is a function of its index alone, and seeds and splits are independent.
func TestCountdownIndependence(t *testing.T) {
	c := small()
	alone := c.Instance(Train, 41)
	for i := range 41 {
		c.Instance(Train, i)
	}
	if again := c.Instance(Train, 41); canonical(again) != canonical(alone) ||
		!slices.Equal(again.Numbers, alone.Numbers) {
		t.Fatalf("instance 41 is %v, then %v", alone, again)
	}
	other := c
	other.Seed++
	same := 0
	for i := range 200 {
		if canonical(c.Instance(Train, i)) == canonical(other.Instance(Train, i)) {
			same++
		}
	}
	if same > 10 {
		t.Fatalf("%d of 200 instances are the same under another seed", same)
	}
}

// The first instances are pinned: a change of the generator changes every run that anyone wants to repeat.
func TestCountdownPinned(t *testing.T) {
	c := small()
	var got []string
	for i := range 4 {
		got = append(got, fmt.Sprintf("%q", c.Example(Train, i)), fmt.Sprintf("%q", c.Example(Test, i)))
	}
	want := strings.Split(strings.TrimSpace(pinned), "\n")
	if !slices.Equal(got, want) {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

const pinned = `
{"8 6 9 = 11\n" "9+8-6"}
{"1 6 8 = 13\n" "8+6-1"}
{"2 2 10 = 18\n" "10*2-2"}
{"2 3 9 = 29\n" "9*3+2"}
{"2 1 2 = 5\n" "2+1+2"}
{"9 10 2 = 21\n" "10+9+2"}
{"7 1 10 = 63\n" "(10-1)*7"}
{"7 4 5 = 39\n" "7*5+4"}
`

// In every style the worked solution scores 1, stays short, and is not what another instance wants.
func TestCountdownSolutions(t *testing.T) {
	for _, style := range CountdownStyles() {
		for _, ops := range []string{"+-*", "+-*/", "+", "*/+"} {
			c := small()
			c.Style, c.Operators = style, ops
			for _, c.Numbers = range []int{2, 3, 4} {
				if style != "meet" || c.Numbers == 3 && ops == "+-*" { // all that this style writes
					checkSolutions(t, c)
				}
			}
		}
	}
}

func checkSolutions(t *testing.T, c Countdown) {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		e := c.Example(Test, i)
		if r := c.Reward(Test, i, e.Completion); r != 1 {
			t.Fatalf("%+v: %q scores %v", c, e, r)
		}
		in := c.Instance(Test, i)
		if r := c.Score(in.Numbers, in.Target+1, e.Completion); r != 0 {
			t.Fatalf("%+v: %q scores %v for another target", c, e, r)
		}
		if limit := maxTrace + 100; len(e.Completion) > limit {
			t.Fatalf("%+v: a completion has %d bytes: %q", c, len(e.Completion), e)
		}
	}
}

func TestCountdownText(t *testing.T) {
	in := Instance{Numbers: []int{4, 7, 2}, Target: 30}
	for style, want := range map[string]Example{
		"expression": {"4 7 2 = 30\n", "7*4+2"},
		"steps":      {"4 7 2 = 30\n", "7*4=28,28+2=30\n7*4+2"},
		"search":     {"4 7 2 = 30\n", "7+4=11 13 9 22,7-4=3 5 1 6,7*4=28 30\n7*4+2"},
		"chat": {"Write an expression that equals 30. Use the numbers 4, 7, 2, each at most once, with parentheses " +
			"and the operators + - *. " +
			"End with the expression alone inside <answer></answer>.", "<answer>7*4+2</answer>"},
	} {
		c := small()
		s := countdownStyles[style]
		if got := (Example{s.prompt(c, in), s.solution(c, in)}); got != want {
			t.Errorf("%s: %q, want %q", style, got, want)
		}
	}
}

// Every division that is written down is exact, and every step's arithmetic is right.
func TestCountdownSteps(t *testing.T) {
	c := small()
	c.Operators, c.Numbers, c.Style = "+-*/", 4, "steps"
	for i := range 300 {
		lines := strings.Split(c.Example(Train, i).Completion, "\n")
		for step := range strings.SplitSeq(lines[0], ",") {
			var a, b, v int
			var op rune
			if _, err := fmt.Sscanf(step, "%d%c%d=%d", &a, &op, &b, &v); err != nil {
				t.Fatalf("step %q: %v", step, err)
			}
			if want := map[rune]int{'+': a + b, '-': a - b, '*': a * b, '/': a / b}[op]; want != v || op == '/' &&
				a%b != 0 {
				t.Fatalf("step %q is wrong", step)
			}
		}
	}
}

// The solver agrees with a brute force over all orders and shapes that shares nothing with it.
func TestCountdownSolveExhaustive(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c := small()
	c.Operators = "+-*/"
	solved := 0
	for range 300 {
		numbers := []int{1 + rng.IntN(12), 1 + rng.IntN(12), 1 + rng.IntN(12), 1 + rng.IntN(12)}[:2+rng.IntN(3)]
		target := 1 + rng.IntN(200)
		e := c.solve(numbers, target)
		if want := reachable(numbers)[target]; e != nil != want {
			t.Fatalf("%v = %d: solved %v, want %v", numbers, target, e != nil, want)
		}
		if e != nil {
			solved++
			if c.Score(numbers, target, e.String()) != 1 {
				t.Fatalf("%v = %d: %q is wrong", numbers, target, e)
			}
		}
	}
	if solved < 50 || solved > 250 {
		t.Fatalf("%d of 300 are solvable: the test says little", solved)
	}
}

// reachable is the set of positive integers made from non-empty subsets of numbers, by splitting every subset in two.
func reachable(numbers []int) map[int]bool {
	sets := make([]map[int]bool, 1<<len(numbers))
	all := map[int]bool{}
	for s := 1; s < len(sets); s++ {
		sets[s] = map[int]bool{}
		for i, n := range numbers {
			if s == 1<<i {
				sets[s][n] = true
			}
		}
		for left := (s - 1) & s; left > 0; left = (left - 1) & s {
			for a := range sets[left] {
				for b := range sets[s&^left] {
					sets[s][a+b], sets[s][a*b] = true, true
					if a > b {
						sets[s][a-b] = true
					}
					if a%b == 0 {
						sets[s][a/b] = true
					}
				}
			}
		}
		for v := range sets[s] {
			all[v] = true
		}
	}
	return all
}

func TestCountdownValidate(t *testing.T) {
	if err := small().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Countdown){
		"numbers is 7":          func(c *Countdown) { c.Numbers = 7 },
		"from 9 to 8":           func(c *Countdown) { c.MinNumber, c.MaxNumber = 9, 8 },
		"max target is 0":       func(c *Countdown) { c.MaxTarget = 0 },
		`operators are "++"`:    func(c *Countdown) { c.Operators = "++" },
		`operators are "^"`:     func(c *Countdown) { c.Operators = "^" },
		`operators are ""`:      func(c *Countdown) { c.Operators = "" },
		"-1 train":              func(c *Countdown) { c.Train = -1 },
		"format credit is 1":    func(c *Countdown) { c.FormatCredit = 1 },
		`style "prose"`:         func(c *Countdown) { c.Style = "prose" },
		"(almost) no train":     func(c *Countdown) { c.MinNumber, c.MaxTarget = 10, 9 },
		"(almost) no test inst": func(c *Countdown) { c.Numbers, c.MinNumber, c.MaxNumber, c.Operators = 2, 1, 1, "+" },
	} {
		c := small()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want one line with %q", err, want)
		}
	}
}

func BenchmarkCountdownExample(b *testing.B) {
	for _, n := range []int{3, 4, 6} {
		for _, style := range []string{"expression", "search"} {
			b.Run(fmt.Sprint(n, style), func(b *testing.B) {
				c := small()
				c.Numbers, c.Style, c.MaxTarget = n, style, 999
				for i := 0; b.Loop(); i++ {
					c.Example(Train, i)
				}
			})
		}
	}
}
