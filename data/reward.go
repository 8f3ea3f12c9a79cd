package data

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Answer is a model's answer with its question. Reward programs and servers get it as JSON.
type Answer struct {
	Question int             `json:"question"`         // index in [Questions]
	Prompt   string          `json:"prompt"`           // as the model read it
	Text     string          `json:"text"`             // what it wrote; JSON has U+FFFD for bytes that are not UTF-8
	Want     string          `json:"answer"`           // the right answer; "" where none is known
	Fields   json.RawMessage `json:"fields,omitempty"` // the question's line of its file
}

// Rewarder computes rewards: reward i, finite, is that of answers[i]. It may be used by several goroutines at once.
type Rewarder interface {
	Rewards(ctx context.Context, answers []Answer) ([]float64, error)
}

// RewardKinds are the kinds of reward functions.
//
//	task     the task's own reward
//	exact    1 where the answer is that of the line, as text
//	math     1 where the answer has the value of the line's, see [RewardOptions]
//	command  a program reads answers and writes rewards
//	http     a server does
var RewardKinds = []string{"task", "exact", "math", "command", "http"}

// RewardOptions choose a [Rewarder]. What a kind does not use stays zero.
//
// "exact" compares what stands at Final with the line's answer, both without blanks around. "math" takes the last
// \boxed{}, else what follows the last "####" in its line, else the last line or the last expression in it, and
// compares values, see [mathEqual].
//
// "command" runs once for each batch: stdin has one [Answer] a line as JSON, and stdout is to have one {"reward":
// number} for each, in the same order. The last line of stderr is quoted in errors. Exit code 0 is success. When the
// program ends or the time is over, its process group is killed.
//
// "http" gets {"items": [Answer, ...]} by POST and is to answer {"rewards": [number, ...]} in the same order. Where the
// connection fails or takes too long, or the status is 429 or from 500, the request is sent again up to Retries times,
// after pauses of 0.25 s, 0.5 s, 1 s, ... up to 8 s.
type RewardOptions struct {
	Kind    string        // one of [RewardKinds]
	Final   Final         // exact
	Marker  string        // exact, for FinalAfter
	Command []string      // command: the program and its arguments; no shell reads them
	URL     string        // http
	Timeout time.Duration // command and http: of one run, of one request
	Retries int           // http
	// command and http: at most so many at once, at least 1; a batch is cut into as many equal parts
	Parallel int
}

// Validate reports values out of range and combinations that contradict each other.
func (o RewardOptions) Validate() error {
	switch o.Kind {
	case "task", "math":
		return nil
	case "exact":
		return o.Final.validate(o.Marker)
	case "command":
		if len(o.Command) == 0 || o.Command[0] == "" {
			return fmt.Errorf("the reward command is empty: give a program and its arguments")
		}
	case "http":
		u, err := url.Parse(o.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("the reward address is %q: want http://HOST/PATH or https://HOST/PATH", o.URL)
		}
		if o.Retries < 0 || o.Retries > maxRetries {
			return fmt.Errorf("the reward server gets %d retries: want 0 to %d", o.Retries, maxRetries)
		}
	default:
		return fmt.Errorf("the reward is %q: want one of %s", o.Kind, strings.Join(RewardKinds, ", "))
	}
	if o.Timeout <= 0 || o.Parallel < 1 {
		return fmt.Errorf("rewards by %s have a time-out of %v and %d parallel requests: want a positive time and "+
			"at least 1", o.Kind,
			o.Timeout, o.Parallel)
	}
	return nil
}

// NewRewarder makes the reward function of answers to q.
func NewRewarder(o RewardOptions, q *Questions) (Rewarder, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	switch o.Kind {
	case "task":
		if q.task == nil {
			return nil, fmt.Errorf(`%s: the reward is "task", but a file has no task: want one of %s`, q.name,
				strings.Join(RewardKinds[1:], ", "))
		}
		return judge(func(a Answer) float64 { return q.task.Reward(q.split, q.list[a.Question].source, a.Text) }), nil
	case "exact":
		return judge(func(a Answer) float64 { return truth(exactEqual(o.Final, o.Marker, a)) }), q.answered()
	case "math":
		return judge(func(a Answer) float64 { return truth(mathEqual(a.Text, a.Want)) }), q.answered()
	case "command":
		p, err := NewProgram(o.Command, o.Timeout)
		if err != nil {
			return nil, fmt.Errorf("the reward command: %w", err)
		}
		return newExternal(fmt.Sprintf("reward command %.120q", strings.Join(o.Command, " ")), o.Parallel, p.rewards),
			nil
	}
	s := newServer(o)
	return newExternal("reward server "+s.name(), o.Parallel, s.judge), nil
}

// LocalRewarder computes rewards in this process, each by itself: an answer may have its reward as soon as it is
// complete.
type LocalRewarder interface {
	Rewarder
	Reward(a Answer) float64
}

// judge is a reward function that runs in this process, on all cores: while answers are judged, devices wait.
type judge func(a Answer) float64

// Reward is that of one answer.
func (j judge) Reward(a Answer) float64 { return j(a) }

func (j judge) Rewards(ctx context.Context, answers []Answer) ([]float64, error) {
	rewards := make([]float64, len(answers))
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(answers)) {
		wait.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(answers) && ctx.Err() == nil; i = next.Add(1) - 1 {
				rewards[i] = j(answers[i])
			}
		})
	}
	wait.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return rewards, nil
}

func truth(right bool) float64 {
	if right {
		return 1
	}
	return 0
}
