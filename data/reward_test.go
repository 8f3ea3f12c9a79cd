package data

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestRewardOptions(t *testing.T) {
	program := RewardOptions{Kind: "command", Command: []string{"sh"}, Timeout: time.Second, Parallel: 1}
	server := RewardOptions{Kind: "http", URL: "https://h/p", Timeout: time.Second, Parallel: 1, Retries: 2}
	good := []RewardOptions{program, server, {Kind: "task"}, {Kind: "math"}, {Kind: "exact", Final: FinalText},
		{Kind: "exact", Final: FinalAfter, Marker: "####"}}
	for _, o := range good {
		if err := o.Validate(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	change := func(o RewardOptions, f func(*RewardOptions)) RewardOptions { f(&o); return o }
	for want, o := range map[string]RewardOptions{
		`the reward is "": want one of task, exact, math, command, http`: {},
		`is "": want`:            {Kind: "exact"},
		`is "boxed" with`:        {Kind: "exact", Final: FinalBoxed, Marker: "x"},
		`is "after" with`:        {Kind: "exact", Final: FinalAfter, Marker: " "},
		"command is empty":       change(program, func(o *RewardOptions) { o.Command = nil }),
		"0s and 1 parallel":      change(program, func(o *RewardOptions) { o.Timeout = 0 }),
		"1s and 0 parallel":      change(server, func(o *RewardOptions) { o.Parallel = 0 }),
		`address is "h/p"`:       change(server, func(o *RewardOptions) { o.URL = "h/p" }),
		`address is "http://"`:   change(server, func(o *RewardOptions) { o.URL = "http://" }),
		`address is ":"`:         change(server, func(o *RewardOptions) { o.URL = ":" }),
		"server gets -1 retries": change(server, func(o *RewardOptions) { o.Retries = -1 }),
		"server gets 21 retries": change(server, func(o *RewardOptions) { o.Retries = 21 }),
	} {
		wantError(t, want, o.Validate)
		wantError(t, want, func() error { _, err := NewRewarder(o, nil); return err })
	}
	program.Command[0] = "no-such-program-here"
	wantError(t, `"no-such-program-here": executable file not found`, func() error {
		_, err := NewRewarder(program, nil)
		return err
	})
}

// rewardsOf judges texts, text i as an answer to question i.
func rewardsOf(t *testing.T, o RewardOptions, q *Questions, texts ...string) []float64 {
	t.Helper()
	r, err := NewRewarder(o, q)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Rewards(context.Background(), answersTo(q, texts...))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func answersTo(q *Questions, texts ...string) (answers []Answer) {
	for i, text := range texts {
		answers = append(answers, q.Answer(i, text))
	}
	return answers
}

func TestExactReward(t *testing.T) {
	const lines = `{"prompt": "a", "answer": " 7 "}` + "\n" + `{"prompt": "b", "answer": "so 7\n#### 7"}`
	for _, k := range []struct {
		o     RewardOptions
		texts [2]string
		want  []float64
	}{
		{RewardOptions{Final: FinalText}, [2]string{"\n7\t", "so 7\n#### 7"}, []float64{1, 1}},
		{RewardOptions{Final: FinalText}, [2]string{"7.0", "7"}, []float64{0, 0}},
		{RewardOptions{Final: FinalLine}, [2]string{"it is\n\t7\n\n", "7"}, []float64{1, 0}},
		{RewardOptions{Final: FinalLine}, [2]string{"7\nno", ""}, []float64{0, 0}},
		{RewardOptions{Final: FinalAfter, Marker: "####"}, [2]string{"#### 8\n#### 7 \nyes", "####7"}, []float64{1, 1}},
		{RewardOptions{Final: FinalAfter, Marker: "####"}, [2]string{"#### 7 \n####", "7"}, []float64{0, 0}},
		{RewardOptions{Final: FinalBoxed}, [2]string{`\boxed{8} \boxed{ 7 } no`, `\boxed{so 7` + "\n" + `#### 7}`},
			[]float64{1, 1}},
		{RewardOptions{Final: FinalBoxed}, [2]string{`\boxed{7} \boxed{7`, `7`}, []float64{0, 0}},
	} {
		k.o.Kind = "exact"
		if got := rewardsOf(t, k.o, questionsOf(t, lines, testOptions()), k.texts[:]...); !reflect.DeepEqual(got,
			k.want) {
			t.Errorf("%+v: %q gives %v, want %v", k.o, k.texts, got, k.want)
		}
	}
	// An empty answer is never right, even where it is wanted.
	if got := rewardsOf(t, RewardOptions{Kind: "exact", Final: FinalText},
		questionsOf(t, `{"prompt": "a", "answer": ""}`, testOptions()), ""); got[0] != 0 {
		t.Error("nothing is right")
	}
}

func TestBraced(t *testing.T) {
	for text, want := range map[string]string{
		"5} x": "5", `\frac{1}{2}}`: `\frac{1}{2}`, `\{1\}} `: `\{1\}`, "5": "", "{5}": "", "": "", `\`: "", `a\}`: "",
		"}": "",
	} {
		if got := braced(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// The task judges the instance that was answers, also where others were dropped.
func TestTaskReward(t *testing.T) {
	c := small()
	c.Train = 20
	longest := 0
	for i := range c.Train {
		longest = max(longest, len(c.Example(Train, i).Prompt))
	}
	o := testOptions()
	o.MaxRows, o.Long = longest-1, LongDrop
	q, err := NewTaskQuestions(c, Train, o)
	if err != nil || q.Dropped == 0 {
		t.Fatalf("%v, %d dropped", err, q.Dropped)
	}
	var right, wrong []string
	for i := range q.Len() {
		right = append(right, q.Answer(i, "").Want)
		wrong = append(wrong, "1+")
	}
	r := RewardOptions{Kind: "task"}
	for i, x := range rewardsOf(t, r, q, right...) {
		if x != 1 {
			t.Errorf("question %d: reward %v", i, x)
		}
	}
	for i, x := range rewardsOf(t, r, q, wrong...) {
		if x != 0 {
			t.Errorf("question %d: reward %v", i, x)
		}
	}
	file := questionsOf(t, `{"prompt": "a"}`, testOptions())
	wantError(t, `f: the reward is "task", but a file has no task`, func() error {
		_, err := NewRewarder(r, file)
		return err
	})
	for _, kind := range []string{"exact", "math"} {
		wantError(t, `f:1: no text under "answer"`, func() error {
			_, err := NewRewarder(RewardOptions{Kind: kind, Final: FinalText}, file)
			return err
		})
	}
}

func TestMathReward(t *testing.T) {
	q := questionsOf(t, `{"prompt": "a", "answer": "1/2"}`+"\n"+`{"prompt": "b", "answer": "3"}`, testOptions())
	if got := rewardsOf(t, RewardOptions{Kind: "math"}, q, `\boxed{0.5}`, "4"); got[0] != 1 || got[1] != 0 {
		t.Errorf("%v", got)
	}
	r, err := NewRewarder(RewardOptions{Kind: "math"}, q)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if _, err := r.Rewards(ctx, answersTo(q, "1")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestAnswerJSON(t *testing.T) {
	q := questionsOf(t, `{"prompt": "<a>",  "answer": "1", "x": [1, 2]}`, testOptions())
	text, err := jsonLines([]Answer{q.Answer(0, "b\xff\n"), {Question: 3}})
	want := `{"question":0,"prompt":"<a>","text":"b\ufffd\n","answer":"1","fields":{"prompt":"<a>","answer":"1",` +
		`"x":[1,2]}}` + "\n" + `{"question":3,"prompt":"","text":"","answer":""}` + "\n"
	if err != nil || strings.ReplaceAll(string(text), "\ufffd", `\ufffd`) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}

// A judge of this process gets every answer once, on several cores, and its rewards are in their order; it stops where
// the run ends.
func TestJudgeOnAllCores(t *testing.T) {
	var calls atomic.Int64
	j := judge(func(a Answer) float64 {
		calls.Add(1)
		return float64(a.Question) + 0.5
	})
	for _, n := range []int{0, 1, 2, 5000} {
		answers := make([]Answer, n)
		for i := range answers {
			answers[i].Question = 7 * i
		}
		calls.Store(0)
		got, err := j.Rewards(t.Context(), answers)
		if err != nil || len(got) != n || int(calls.Load()) != n {
			t.Fatalf("%d answers: %d rewards of %d calls, %v", n, len(got), calls.Load(), err)
		}
		for i, reward := range got {
			if reward != float64(7*i)+0.5 {
				t.Fatalf("answer %d of %d: %v", i, n, reward)
			}
		}
	}
	why := errors.New("the run ends")
	ctx, cancel := context.WithCancelCause(t.Context())
	calls.Store(0)
	stops := judge(func(Answer) float64 {
		if calls.Add(1) == 10 {
			cancel(why)
		}
		return 0
	})
	if _, err := stops.Rewards(ctx, make([]Answer, 1<<20)); !errors.Is(err, why) || calls.Load() > 1<<19 {
		t.Errorf("%d answers are judged behind the end: %v", calls.Load(), err)
	}
}
