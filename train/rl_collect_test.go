package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/data"
	"lockstep/serve"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/testshape"
)

// An answer in the making is overdue when the step after the next update would find it older than is allowed.
func TestOverdue(t *testing.T) {
	for _, c := range []struct {
		started, missing int
		want             bool
	}{
		{4, 1, false}, {3, 1, true}, {3, 0, false}, {6, 3, false}, {0, 2, true},
	} {
		k := &collector{staleness: 4, updatesPerStep: 2}
		k.Version = 6 // the step after this one is at version 8, and takes tokens of version 4 and later
		k.Groups = []*group{{Started: 6, Missing: 1}, {Started: c.started, Missing: c.missing}}
		if got := k.overdue(); got != c.want {
			t.Errorf("started at version %d, %d answers missing: overdue %t", c.started, c.missing, got)
		}
	}
}

// A step takes the first complete groups in the order in which they were asked, and leaves the others for the next.
func TestTake(t *testing.T) {
	k := &collector{prompts: 2}
	for i, missing := range []int{0, 1, 0, 0, 2} {
		k.Groups = append(k.Groups, &group{Asked: i, Missing: missing})
	}
	numbers := func(list []*group) (asked []int) {
		for _, g := range list {
			asked = append(asked, g.Asked)
		}
		return asked
	}
	if taken := numbers(k.take()); !slices.Equal(taken, []int{0, 2}) || !slices.Equal(numbers(k.Groups),
		[]int{1, 3, 4}) {
		t.Errorf("took %v, left %v", taken, numbers(k.Groups))
	}
}

// noJudge has nothing to reward.
type noJudge struct{}

func (noJudge) Rewards(context.Context, []data.Answer) ([]float64, error) { return nil, nil }

// Finished answers, in whatever order, come with their texts to the prompts that asked for them. Texts may take longer,
// but not longer than until answers are judged.
func TestStore(t *testing.T) {
	k := &collector{groupSize: 2, decode: func(ids []int32, finish serve.FinishReason) string {
		time.Sleep(5 * time.Millisecond)
		return fmt.Sprint(ids, finish)
	}}
	for _, asked := range []int{3, 5, 6, 9} {
		k.Groups = append(k.Groups, &group{Asked: asked, Missing: 2, Judged: true, Episodes: make([]runlog.Episode, 2)})
	}
	var done []serve.Done
	for _, index := range []int{13, 6, 11, 7, 19} {
		done = append(done, serve.Done{Index: index, Result: serve.Result{IDs: []int32{int32(index)},
			LogProbs: []float32{float32(index)}, Versions: []int{index}, Finish: serve.FinishStop}})
	}
	k.JudgedQuestions = &setup.JudgedQuestions{Judge: noJudge{}}
	k.store(done)
	if err := k.judgeAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, missing := range []int{0, 1, 1, 1} {
		g := k.Groups[i]
		if g.Missing != missing {
			t.Errorf("prompt %d lacks %d answers, want %d", g.Asked, g.Missing, missing)
		}
		for n, e := range g.Episodes {
			index := 2*g.Asked + n
			got := slices.ContainsFunc(done, func(d serve.Done) bool { return d.Index == index })
			if text := fmt.Sprintf("[%d]stop", index); got != (e.Text == text) || got && (e.Versions[0] != index ||
				e.LogProbs[0] != float32(index) || e.IDs[0] != int32(index) || e.Finish != serve.FinishStop) {
				t.Errorf("prompt %d, answer %d: %+v", g.Asked, n, e)
			}
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("an answer to a prompt that is not asked is stored")
		}
	}()
	k.store([]serve.Done{{Index: 8}})
}

// lengthReward is the reward of an answer in tests.
func lengthReward(a data.Answer) float64 { return float64(100*a.Question + len(a.Text)) }

// local rewards in this process, and is to be asked for each answer by itself.
type local struct{ noJudge }

func (local) Reward(a data.Answer) float64 { return lengthReward(a) }

// elsewhere rewards in another process.
type elsewhere struct{}

func (elsewhere) Rewards(_ context.Context, answers []data.Answer) (list []float64, err error) {
	for _, a := range answers {
		list = append(list, lengthReward(a))
	}
	return list, nil
}

// Answers have their rewards when all are judged, whether as soon as their texts were there or all at once; those of a
// checkpoint too, whose groups have not been judged.
func TestRewards(t *testing.T) {
	path := filepath.Join(t.TempDir(), "questions.jsonl")
	if err := os.WriteFile(path, []byte("{\"ids\": [1]}\n{\"ids\": [2]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	q, err := data.LoadQuestions(path, data.Options{End: -1, Vocab: 9, MaxRows: 9, Long: "error"})
	if err != nil {
		t.Fatal(err)
	}
	for _, judge := range []data.Rewarder{local{}, elsewhere{}} {
		for _, restored := range []bool{false, true} {
			k := &collector{groupSize: 2, decode: func(ids []int32, _ serve.FinishReason) string {
				return strings.Repeat("x", len(ids))
			}, JudgedQuestions: &setup.JudgedQuestions{Questions: q, Judge: judge}}
			var st collectorState
			var done []serve.Done
			for g := range 2 {
				st.Groups = append(st.Groups, &group{Asked: g, Missing: 2, Episodes: make([]runlog.Episode, 2)})
				for i := range 2 {
					e := &st.Groups[g].Episodes[i]
					done = append(done, serve.Done{Index: 2*g + i, Result: serve.Result{IDs: make([]int32, 1+2*g+i)}})
					if e.Question = g; restored {
						e.IDs, e.Text = []int32{1}, strings.Repeat("x", 1+2*g+i)
						st.Groups[g].Missing = 0
					}
				}
			}
			if k.restore(st); !restored {
				k.store(done)
			}
			if err := k.judgeAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			for g, want := range [][]float64{{1, 2}, {103, 104}} {
				for i, e := range k.Groups[g].Episodes {
					if e.Reward != want[i] || !k.Groups[g].Judged {
						t.Errorf("%T, restored %t: group %d, answer %d: %g, want %g", judge, restored, g, i, e.Reward,
							want[i])
					}
				}
			}
			ended, end := context.WithCancel(t.Context())
			end()
			if _, ok := judge.(data.LocalRewarder); ok && k.judgeAll(ended) == nil {
				t.Error("a run that has ended goes on")
			}
		}
	}
}

// Groups of one reward are left out where that is asked for, once all of their answers are judged.
func TestLeaveOut(t *testing.T) {
	made := func(judged bool, rewards ...float64) *group {
		g := &group{Judged: judged}
		for _, r := range rewards {
			g.Episodes = append(g.Episodes, runlog.Episode{Reward: r})
		}
		return g
	}
	k := &collector{dynamic: true}
	flat, mixed, waiting := made(true, 0.5, 0.5, 0.5), made(true, 0.5, 1, 0.5), made(false, 0, 0, 0)
	k.Groups = []*group{flat, mixed, waiting}
	if left := k.dropUniform(); !slices.Equal(left, []*group{flat}) ||
		!slices.Equal(k.Groups, []*group{mixed, waiting}) {
		t.Errorf("left out %v of %v", left, k.Groups)
	}
	k = &collector{}
	k.Groups = []*group{flat, mixed}
	if left := k.dropUniform(); left != nil || len(k.Groups) != 2 {
		t.Errorf("left out %v without dynamic sampling", left)
	}
}

// What the engine is asked follows from the shape: answers have seed and temperature of their own, not those of the
// order of prompts and of evaluations.
func TestCollectorRequest(t *testing.T) {
	s, err := testshape.Parse(append(testshape.RL(), "rollout.seed=5", "run.seed=3", "rl.temperature=0.75",
		"rollout.temperature=0.5",
		"rollout.top_p=0.5", "rl.staleness=7", "rl.minibatches=2", "rl.epochs=2"))
	if err != nil {
		t.Fatal(err)
	}
	c := (&job{shape: s, corpus: &setup.Corpus{TrainQuestions: &setup.JudgedQuestions{}}}).newCollector()
	q := c.request
	if q.Seed != 5 || c.seed != 3 || q.Temperature != 0.75 || q.TopP != 1 || q.TopK != 0 || q.MaxTokens != 24 {
		t.Errorf("request %+v, order of seed %d", q, c.seed)
	}
	if c.prompts != 4 || c.groupSize != 4 || c.staleness != 7 || c.updatesPerStep != 4 || c.maxAsked != 16*4*2 ||
		c.dynamic {
		t.Errorf("%d prompts of %d answers, staleness %d at %d updates a step, at most %d, dynamic %t",
			c.prompts, c.groupSize, c.staleness, c.updatesPerStep, c.maxAsked, c.dynamic)
	}
}
