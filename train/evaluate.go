package train

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"lockstep/data"
	"lockstep/serve"
	"lockstep/train/plan"
	"lockstep/train/report"
	"lockstep/train/runlog"
)

// evaluate fills the record's evaluation: the loss of held-out samples and, for a task, the share of instances that
// generated answers solve.
func (j *job) evaluate(rec *runlog.Record) error {
	if j.preference != nil {
		return j.evaluatePairs(rec)
	}
	if n := j.evalSamples(); n > 0 {
		rec.EvalLoss = runlog.Num(j.trainer.EvalLoss(j.evalPacks(n)))
		j.progress.Note("step %d: held-out loss %.4f", j.state.Step, float64(*rec.EvalLoss))
	}
	if j.corpus.HeldOutQuestions == nil || j.shape.Data.EvalSamples == 0 {
		return nil
	}
	n := min(j.shape.Data.EvalSamples, j.corpus.HeldOutQuestions.Len())
	right, err := j.answerHeldOut(n)
	if errors.Is(err, serve.ErrNotFinite) { // the step is taken, and what it gave is saved
		j.progress.Note("step %d: held-out instances: %v", j.state.Step, err)
		return nil
	} else if err != nil {
		return err
	}
	rec.EvalAccuracy, rec.EvalSamples = runlog.Num(float64(right)/float64(n)), n
	j.progress.Note("step %d: solves %d of %d held-out instances (%.1f%%)", j.state.Step, right, n,
		100*float64(right)/float64(n))
	return nil
}

// evaluatePairs fills in the loss of held-out pairs, their margin, and the share whose chosen answer has the higher
// reward.
func (j *job) evaluatePairs(rec *runlog.Record) error {
	if len(j.preference.heldOut) == 0 {
		return nil
	}
	m, err := j.preference.evaluate(j.ctx)
	if err != nil {
		return err
	}
	n := float64(m.Pairs)
	rec.EvalLoss, rec.EvalMargin, rec.EvalAccuracy, rec.EvalSamples = runlog.Num(m.Loss),
		runlog.Num((m.Chosen-m.Rejected)/n),
		runlog.Num(float64(m.Preferred)/n), m.Pairs
	j.progress.Note("step %d: held-out loss %.4f, margin %.3f, prefers the chosen answer of %d of %d pairs (%.1f%%)",
		j.state.Step, m.Loss, float64(*rec.EvalMargin), m.Preferred, m.Pairs, 100*float64(*rec.EvalAccuracy))
	return nil
}

func (j *job) evalSamples() int {
	if j.corpus.HeldOut == nil {
		return 0
	}
	return min(j.shape.Data.EvalSamples, j.corpus.HeldOut.Len())
}

func (j *job) evalPacks(n int) (packs [][]data.Sample) {
	var pack []data.Sample
	rows := 0
	for i := range n {
		s := j.corpus.HeldOut.Sample(i)
		if rows += len(s.IDs); rows > j.shape.Data.PackRows {
			packs, pack, rows = append(packs, pack), nil, len(s.IDs)
		}
		pack = append(pack, s)
	}
	return append(packs, pack)
}

// answerHeldOut answers n held-out questions with the rollout engine and counts the answers that are right.
func (j *job) answerHeldOut(n int) (right int, err error) {
	held, rollout := j.corpus.HeldOutQuestions, j.shape.Rollout
	reqs := make([]serve.Request, n)
	for i := range reqs {
		reqs[i] = serve.Request{
			ID: uint64(i), Prompt: held.Prompt(i), MaxTokens: rollout.MaxTokens, Stop: j.stops,
			Temperature: float32(rollout.Temperature), TopP: float32(rollout.TopP), TopK: rollout.TopK,
			Seed: uint64(rollout.Seed),
		}
	}
	results, err := j.engine.Run(j.ctx, reqs)
	if err != nil {
		return 0, err
	}
	answers := make([]data.Answer, n)
	for i, res := range results {
		answers[i] = held.Answer(i, j.decode(res.IDs, res.Finish))
	}
	rewards, err := held.Judge.Rewards(j.ctx, answers)
	if err != nil {
		return 0, err
	}
	j.generations = nil
	for i, a := range answers {
		g := runlog.Generation{Prompt: strings.TrimSpace(held.Text(i)), Answer: strings.TrimSpace(a.Text),
			Reward: rewards[i]}
		if g.Reward == 1 {
			right++
		} else if want := held.Solution(i); want != "" {
			g.Note = "a right one: " + want
		}
		j.generations = append(j.generations, g)
	}
	return right, nil
}

// environment lists what the report says about the machine and the run.
func environment(j *job) []runlog.NameValue {
	total, active := j.trainer.Model.Parameters()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return []runlog.NameValue{
		{Name: "model", Value: fmt.Sprintf("%s, %s parameters, %s active", j.trainer.Model.Family,
			report.Compact(float64(total)),
			report.Compact(float64(active)))},
		{Name: "device", Value: j.ranks.DeviceName()},
		{Name: "dot mode", Value: string(j.trainer.Rank.Dev.Definition().Dot)},
		{Name: "storage", Value: j.trainer.Model.DType.String()},
		{Name: "peak memory", Value: fmt.Sprintf("%d MiB", plan.PeakMemory()>>20)},
		{Name: "tokens", Value: fmt.Sprint(j.state.Tokens)},
		{Name: "go", Value: runtime.Version()},
		{Name: "host", Value: host},
	}
}
