package train

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"lockstep/data"
	"lockstep/train/plan"
	"lockstep/train/runlog"
	"lockstep/train/trainer"
)

// step takes one step, and evaluates, logs and saves where that is due.
func (j *job) step() error {
	began := time.Now()
	rec := runlog.Record{Step: j.state.Step + 1}
	var fields []string
	var tokens int
	var err error
	asked := trainer.Counted(j.trainer.Rank.Dev, func() {
		if j.learner != nil && rec.Step > j.warmSteps {
			tokens, fields, err = j.learningStep(&rec)
		} else {
			tokens, fields, err = j.supervisedStep(&rec)
		}
	})
	if err != nil {
		return err
	}
	elapsed := time.Since(began).Seconds()
	step := rec.Step
	j.count(step, tokens, elapsed)
	rec.Tokens, rec.TokensPerSecond, rec.Memory = j.state.Tokens, runlog.Num(float64(tokens)/elapsed), plan.PeakMemory()
	rec.Launches, rec.Waits, rec.Allocations = asked.Launches, asked.Waits, asked.Allocations
	j.progress.Step(step, append(fields, j.usage(&rec, elapsed)...)...)
	due := j.shape.Run.EvalEvery > 0 && step%j.shape.Run.EvalEvery == 0 || step == j.steps
	if due || step == j.warmSteps {
		j.trainer.Finish()
	}
	if due {
		if err := j.evaluate(&rec); err != nil && j.ctx.Err() == nil {
			return err
		}
	}
	if due || step%j.shape.Run.LogEvery == 0 || step == 1 {
		if err := j.metrics.Write(rec); err != nil {
			return err
		}
	}
	if j.shape.Run.SaveEvery > 0 && step%j.shape.Run.SaveEvery == 0 && step < j.steps {
		return j.save()
	}
	return nil
}

// count moves the run's state, which checkpoints hold, past a step.
func (j *job) count(step, tokens int, elapsed float64) {
	j.state.Step = step
	if j.stream != nil {
		j.state.Data = j.stream.State()
	}
	j.state.Tokens += tokens
	j.state.Seconds += elapsed
	if step > j.warmSteps {
		j.took = append(j.took, elapsed)
	}
}

// supervisedStep takes one optimizer step on the next packs of the data.
func (j *job) supervisedStep(rec *runlog.Record) (tokens int, fields []string, err error) {
	n := j.shape.Run.Packs
	if j.learner != nil {
		n = j.shape.WarmStart.Packs
	}
	next := j.stream.Next(n)
	j.state.Origin.Short = len(next) < n
	batch := j.samplesOf(next)
	began := time.Now()
	res := j.trainer.Step(rec.Step, batch)
	if err := res.Finite(); err != nil {
		key := "optim.lr"
		if j.learner != nil {
			key = "warm_start.lr"
		}
		return 0, nil, j.notFinite(rec.Step, j.trainer, err, key)
	}
	rec.Loss, rec.LR, rec.GradNorm = runlog.Num(res.Loss), runlog.Num(res.LR), runlog.Num(res.Norm)
	fields = append([]string{fmt.Sprintf("loss %.4f", res.Loss)}, j.indexers(rec, res)...)
	if j.preference != nil {
		fields = append(fields, j.preference.record(rec, res.Measures)...)
	}
	return res.Tokens, append(fields, fmt.Sprintf("%.0f tokens/s", float64(res.Tokens)/time.Since(began).Seconds())),
		nil
}

// samplesOf returns the global batch of packs of the stream.
func (j *job) samplesOf(list []data.Pack) trainer.GlobalBatch {
	if j.preference != nil {
		return packPairs(j.preference.train, list)
	}
	var packs [][]data.Sample
	for _, p := range list {
		packs = append(packs, j.stream.Samples(p))
	}
	return trainer.Supervised(packs)
}

// learningStep takes one step of reinforcement learning.
func (j *job) learningStep(rec *runlog.Record) (tokens int, fields []string, err error) {
	if rec.Step == j.warmSteps+1 {
		if err := j.beginLearning(); err != nil {
			return 0, nil, err
		}
	}
	res, err := j.learner.step(context.WithoutCancel(j.ctx), rec.Step) // a step that has begun is finished
	switch {
	case errors.Is(err, trainer.ErrNotFinite):
		return 0, nil, j.notFinite(rec.Step, j.learner.trainer, err, "optim.lr")
	case err != nil:
		return 0, nil, err
	}
	return res.answerTokens + res.trainRows, append(j.indexers(rec, meanIndexers(res.updates)),
		j.learner.record(rec, res)...), nil
}

// start is the folder of the checkpoint that reinforcement learning starts from.
func (j *job) start() string { return filepath.Join(j.folder, startDir) }

// beginLearning is what comes before the first step of reinforcement learning.
func (j *job) beginLearning() error {
	j.trainer.Replicas.ClearMoments() // those of the warm start belong to another loss
	if err := saveCheckpoint(j.trainer.Replicas, j.tokenizer, j.start(), j.shape.Model.Path, j.state); err != nil {
		return err
	}
	return j.learner.copyWeights("")
}

// notFinite returns the error of a step whose numbers are not finite, with what to do about it.
func (j *job) notFinite(step int, t *trainer.Trainer, err error, key string) error {
	return fmt.Errorf("step %d: %w first in %s; the update was not applied: start again with a lower %s, from %s", step,
		err, t.FirstNotFinite(), key, j.newestWeights())
}

// newestWeights names the weights that a run with numbers that are not finite can start again from.
func (j *job) newestWeights() string {
	parent := filepath.Join(j.folder, checkpointsDir)
	names, err := listCheckpoints(parent)
	if err != nil || len(names) == 0 {
		return "the beginning"
	}
	return filepath.Join(parent, names[0], weightsDir)
}
