package train

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/serve"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// rewardProgram makes this test binary a program that judges answers by [rewardOf].
const rewardProgram = "LOCKSTEP_TEST_REWARD"

func runRewardProgram() error {
	dec, enc := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for dec.More() {
		var a data.Answer
		if err := dec.Decode(&a); err != nil {
			return err
		}
		if err := enc.Encode(map[string]float64{"reward": rewardOf(a.Question, a.Text)}); err != nil {
			return err
		}
	}
	return nil
}

// rewardOf differs between the answers of a network that has learned nothing, and now and then it is the same.
func rewardOf(question int, text string) float64 {
	return float64(question%2) + float64(len(strings.Fields(text))%3)/4
}

// What a step records is what its answers say, worked out again from the log of answers: with stale answers, groups
// that are left out, a penalty for length and several updates a step.
func TestRecordAgainstLog(t *testing.T) {
	t.Setenv(rewardProgram, "1")
	const prompts, size, minibatches, epochs, staleness, longest, overlong, warm = 4, 3, 2, 2, 4, 24, 10, 2
	out := filepath.Join(t.TempDir(), "run")
	_, err := runTiny(t, out, false, append(testshape.RL(), "rl.group=3", "rl.minibatches=2", "rl.epochs=2",
		"rl.staleness=4",
		"rl.dynamic=true", "rollout.slots=5", "rl.overlong_rows=10", "warm_start.steps=2", "run.steps=8",
		"data.countdown.train=11",
		"rl.reward=command", "rl.command=['"+os.Args[0]+"', '-test.run=^$']")...)
	if err != nil {
		t.Fatal(err)
	}
	steps := map[int][]*runlog.Episode{}
	var asked []int // questions, in the order in which they were asked
	if err := runlog.EachEpisode(out, func(e *runlog.Episode, _ []byte) error {
		steps[e.Step] = append(steps[e.Step], e)
		for len(asked) <= e.Asked {
			asked = append(asked, -1)
		}
		asked[e.Asked] = e.Question
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	tokens, leftOut, stale := 0, 0, 0.0
	for _, r := range readRecords(t, out) {
		if r.Step <= warm {
			tokens = r.Tokens
			continue
		}
		learned, left := split(steps[r.Step])
		leftOut += len(left)
		if len(learned) != prompts*size {
			t.Fatalf("step %d learns from %d answers", r.Step, len(learned))
		}
		asOf := (r.Step - warm - 1) * minibatches * epochs
		want := sumUp(learned, left, size, asOf)
		want["updates"] = float64(asOf + minibatches*epochs)
		want["compared"], want["entropy"] = presentTokens(learned[:len(learned)/minibatches], asOf)
		for _, e := range learned {
			tokens += len(e.IDs) + epochs*(len(e.Prompt)+len(e.IDs)-1)
		}
		for _, e := range left {
			tokens += len(e.IDs)
		}
		want["tokens"] = float64(tokens)
		for key, value := range want {
			if got := numberOf(t, r, key); math.Abs(got-value) > 1e-9*math.Max(1, value) {
				t.Errorf("step %d: %s is %g, its answers say %g", r.Step, key, got, value)
			}
		}
		stale = math.Max(stale, want["stale"])
		checkAdvantages(t, learned, size, longest, overlong)
		for _, e := range learned {
			first, last := e.Versions[0], e.Versions[len(e.Versions)-1]
			if first < asOf-staleness || first > last || last > asOf {
				t.Errorf("step %d learns at version %d from tokens of versions %v", r.Step, asOf, e.Versions)
			}
		}
	}
	if leftOut == 0 || stale == 0 {
		t.Errorf("%d answers were left out, staleness is up to %g: the test shows little", leftOut, stale)
	}
	checkOrder(t, asked, 11)
}

// The record of a step with a group of one reward, one that was left out, a cut answer and stale tokens, by hand.
func TestRecordAnswers(t *testing.T) {
	answer := func(reward float64, finish serve.FinishReason, versions ...int) *runlog.Episode {
		return &runlog.Episode{Reward: reward, Finish: finish, Versions: versions, IDs: make([]int32, len(versions))}
	}
	l := &learner{collector: &collector{groupSize: 2, staleness: 4}, updatesBefore: 7}
	var rec runlog.Record
	l.recordAnswers(&rec, learningResult{discarded: 2, episodes: []*runlog.Episode{
		answer(0.5, serve.FinishStop, 7, 7), answer(0.5, serve.FinishStop, 5, 6, 7, 7), // rewards are equal
		answer(0, serve.FinishLength, 4, 4, 4, 7), answer(1, serve.FinishStop, 7, 7),
	}})
	compareNumbers(t, rec, map[string]float64{
		"reward": 0.5, "reward_spread": 0.5, "length": 3, "truncated": 0.25,
		"discarded": (2.0 + 2) / (4 + 2), "stale": (2.0 + 1 + 3*3) / 12,
	})
	l.staleness, rec = 0, runlog.Record{}
	l.recordAnswers(&rec, learningResult{episodes: []*runlog.Episode{answer(1, serve.FinishStop, 7),
		answer(0, serve.FinishStop, 7)}})
	if rec.Stale != nil {
		t.Errorf("without stale answers stale is %g", float64(*rec.Stale))
	}
}

// split tells the answers that a step learned from and those that it left out.
func split(list []*runlog.Episode) (learned, left []*runlog.Episode) {
	for _, e := range list {
		if e.Learned {
			learned = append(learned, e)
		} else {
			left = append(left, e)
		}
	}
	return learned, left
}

// sumUp is what the record of a step says of its answers, groups of size after another. asOf is the weights' version.
func sumUp(learned, left []*runlog.Episode, size, asOf int) map[string]float64 {
	reward, tokens, cut, stale, flat := 0.0, 0.0, 0.0, 0.0, 0.0
	for i, e := range learned {
		reward += e.Reward
		tokens += float64(len(e.IDs))
		if e.Finish == serve.FinishLength {
			cut++
		}
		for _, v := range e.Versions {
			stale += float64(asOf - v)
		}
		if i%size > 0 {
			continue
		}
		var rewards []float64
		for _, o := range learned[i : i+size] {
			rewards = append(rewards, o.Reward)
		}
		if slices.Min(rewards) == slices.Max(rewards) {
			flat += float64(size)
		}
	}
	n := float64(len(learned))
	return map[string]float64{
		"reward": reward / n, "length": tokens / n, "truncated": cut / n, "stale": stale / tokens,
		"reward_spread": 1 - flat/n, "discarded": (flat + float64(len(left))) / (n + float64(len(left))),
	}
}

// presentTokens counts the tokens that the present weights chose, and estimates the entropy from them.
func presentTokens(list []*runlog.Episode, version int) (n, entropy float64) {
	for _, e := range list {
		for k, v := range e.Versions {
			if v == version {
				n++
				entropy -= float64(e.LogProbs[k])
			}
		}
	}
	return n, entropy / n
}

// checkAdvantages wants those of GRPO, of rewards that fall by 1 over the last tokens before the longest answer (DAPO).
func checkAdvantages(t *testing.T, learned []*runlog.Episode, size, longest, overlong int) {
	t.Helper()
	for from := 0; from < len(learned); from += size {
		group := learned[from : from+size]
		rewards, mean, square := make([]float64, size), 0.0, 0.0
		for i, e := range group {
			if e.Asked != group[0].Asked || e.Sample != i || e.Reward != rewardOf(e.Question, e.Text) {
				t.Fatalf("answer %d to prompt %d stands in the group of prompt %d with a reward of %g",
					e.Sample, e.Asked, group[0].Asked, e.Reward)
			}
			rewards[i] = e.Reward - math.Max(0, float64(len(e.IDs)-(longest-overlong))/float64(overlong))
			mean += rewards[i] / float64(size)
		}
		for _, r := range rewards {
			square += (r - mean) * (r - mean)
		}
		for i, e := range group {
			want := (rewards[i] - mean) / (math.Sqrt(square/float64(size-1)) + 1e-4)
			if math.Abs(float64(e.Advantage)-want) > 1e-5 {
				t.Errorf("step %d, prompt %d, sample %d: advantage %g, want %g", e.Step, e.Asked, i, e.Advantage, want)
			}
		}
	}
}

// checkOrder wants every question once in n that are asked, and another order each time.
func checkOrder(t *testing.T, asked []int, n int) {
	t.Helper()
	var before []int
	for len(asked) >= n {
		epoch := asked[:n]
		sorted := slices.Sorted(slices.Values(epoch))
		if sorted[0] != 0 || sorted[n-1] != n-1 || len(slices.Compact(sorted)) != n {
			t.Errorf("an epoch asks %v", epoch)
		}
		if slices.Equal(epoch, before) {
			t.Errorf("two epochs ask in one order: %v", epoch)
		}
		before, asked = epoch, asked[n:]
	}
	if before == nil {
		t.Errorf("%d questions were asked, less than an epoch", len(asked))
	}
}

// numberOf is a value of a record by its key in the log; 0 where the log leaves it out.
func numberOf(t *testing.T, r runlog.Record, key string) float64 {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := json.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	x, _ := values[key].(float64)
	return x
}
