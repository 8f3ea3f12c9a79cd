package train

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// An evaluation asks the first held-out questions, each by its own words, and its accuracy is the share whose
// reward is 1: not more, not less.
func TestEvaluationRecord(t *testing.T) {
	t.Setenv(rewardProgram, "1")
	dir := t.TempDir()
	var lines strings.Builder
	for i := range 9 {
		fmt.Fprintf(&lines, "{\"prompt\": \"make %d from 2 1 %d\", \"answer\": \"%d\"}\n", i+3, i, i)
	}
	questions := writeText(t, filepath.Join(dir, "questions.jsonl"), lines.String())
	evaluated := func(out string, temperature int) (res runlog.Result) {
		_, err := runTiny(t, out, false, append(testshape.RL(), "warm_start.steps=0", "run.steps=1", "data.task=",
			"data.path="+questions, "data.eval_path="+questions, "data.eval_samples=7", "rollout.seed=2",
			fmt.Sprint("rollout.temperature=", temperature), "rl.reward=command", "rl.command=['"+os.Args[0]+
				"', '-test.run=^$']")...)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(readBytes(t, filepath.Join(out, runlog.ResultFile))), &res); err != nil {
			t.Fatal(err)
		}
		return res
	}
	answers := map[string]bool{} // the likeliest
	for _, s := range evaluated(filepath.Join(dir, "greedy"), 0).Samples {
		answers[s.Answer] = true
	}
	if len(answers) < 4 {
		t.Errorf("the answers to 7 questions are %d: %v", len(answers), answers)
	}
	out := filepath.Join(dir, "run")
	res := evaluated(out, 1)
	right, rewards := 0, []float64{}
	for i, s := range res.Samples {
		rewards = append(rewards, s.Reward)
		if !strings.HasPrefix(s.Prompt, fmt.Sprintf("make %d from", i+3)) || s.Reward != rewardOf(i, s.Answer) {
			t.Errorf("sample %d is %+v", i, s)
		}
		if s.Reward == 1 {
			right++
		}
		if (s.Note == fmt.Sprintf("a right one: %d", i)) != (s.Reward != 1) {
			t.Errorf("sample %d, of reward %g, has the note %q", i, s.Reward, s.Note)
		}
	}
	records := readRecords(t, out)
	last := records[len(records)-1]
	if len(res.Samples) != 7 || last.EvalSamples != 7 || float64(*last.EvalAccuracy) != float64(right)/7 {
		t.Errorf("%d samples of %d, accuracy %g, rewards %v",
			len(res.Samples), last.EvalSamples, float64(*last.EvalAccuracy), rewards)
	}
	if right == 0 || slices.Max(rewards) <= 1 {
		t.Errorf("rewards %v: the test shows little", rewards)
	}
}

// The held-out loss is the mean over the targets of the samples, however they are packed.
func TestEvalLoss(t *testing.T) {
	var list []data.Sample
	for i := range 9 {
		s := data.Sample{IDs: make([]int32, 5+3*i), Targets: make([]int32, 5+3*i)}
		for k := range s.IDs {
			s.IDs[k], s.Targets[k] = int32(7*i+k), int32(7*i+k+1)
			if k < i {
				s.Targets[k] = -1
			}
		}
		list = append(list, s)
	}
	err := ready(t, false, func(_ *limited, tr *trainer.Trainer) {
		sum, targets := 0.0, 0
		for _, s := range list {
			sum += tr.EvalLoss([][]data.Sample{{s}}) * float64(s.Learned())
			targets += s.Learned()
		}
		got := tr.EvalLoss([][]data.Sample{list[:4], list[4:5], list[5:]})
		if want := sum / float64(targets); math.Abs(got-want) > 1e-5 || want < 1 {
			t.Errorf("loss %g, want %g", got, want)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Held-out samples are packed in order, each once, as many as a pack has rows for.
func TestEvalPacks(t *testing.T) {
	s, err := testshape.Parse([]string{"data.pack_rows=160"})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := data.NewChatTokenizer("countdown")
	if err != nil {
		t.Fatal(err)
	}
	o := data.Options{Codec: tok, Template: tok.Template, End: tok.End, Vocab: 480, MaxRows: 160,
		Long: data.LongError}
	held, err := data.NewTaskDataset(setup.Countdown(s), data.Test, o)
	if err != nil {
		t.Fatal(err)
	}
	j := &job{shape: s, corpus: &setup.Corpus{HeldOut: held}}
	packs, at := j.evalPacks(9), 0
	for i, pack := range packs {
		rows := 0
		for _, sample := range pack {
			if want := held.Sample(at); !slices.Equal(sample.IDs, want.IDs) ||
				!slices.Equal(sample.Targets, want.Targets) {
				t.Errorf("pack %d holds another sample than %d", i, at)
			}
			rows += len(sample.IDs)
			at++
		}
		if rows > 160 || len(pack) == 0 {
			t.Errorf("pack %d has %d samples of %d rows", i, len(pack), rows)
		}
	}
	if at != 9 || len(packs) < 2 {
		t.Errorf("%d samples in %d packs", at, len(packs))
	}
}
