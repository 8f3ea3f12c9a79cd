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

// step takes one step and what is due after it.
func (j *job) step() error {
	began := time.Now()
	rec := runlog.Record{Step: j.state.Step + 1}
	var fields []string
	var tokens int
	var err error
	asked := trainer.Counted(j.t.Rank.Dev, func() {
		if j.rl != nil && rec.Step > j.warm {
			tokens, fields, err = j.reinforced(&rec)
		} else {
			tokens, fields, err = j.supervised(&rec)
		}
	})
	if err != nil {
		return err
	}
	elapsed := time.Since(began).Seconds()
	step := rec.Step
	j.state.Step = step
	if j.stream != nil {
		j.state.Data = j.stream.State()
	}
	j.state.Tokens += tokens
	j.state.Seconds += elapsed
	rec.Tokens, rec.TokensPerSecond, rec.Memory = j.state.Tokens, runlog.Num(float64(tokens)/elapsed), plan.PeakMemory()
	rec.Launches, rec.Waits, rec.Allocations = asked.Launches, asked.Waits, asked.Allocations
	j.progress.Step(step, append(fields, j.usage(&rec)...)...)
	due := j.s.Run.EvalEvery > 0 && step%j.s.Run.EvalEvery == 0 || step == j.steps
	if due {
		if err := j.evaluate(&rec); err != nil && j.ctx.Err() == nil {
			return err
		}
	}
	if due || step%j.s.Run.LogEvery == 0 || step == 1 {
		if err := j.metrics.Write(rec); err != nil {
			return err
		}
	}
	if j.s.Run.SaveEvery > 0 && step%j.s.Run.SaveEvery == 0 && step < j.steps {
		return j.save()
	}
	return nil
}

// supervised takes one optimizer step on the next packs of the data.
func (j *job) supervised(rec *runlog.Record) (tokens int, fields []string, err error) {
	n := j.s.Run.Packs
	if j.rl != nil {
		n = j.s.WarmStart.Packs
	}
	next := j.stream.Next(n)
	j.state.Origin.Short = len(next) < n
	packs := j.packs(next)
	began := time.Now()
	res := j.t.Step(rec.Step, packs)
	if err := res.Finite(); err != nil {
		key := "optim.lr"
		if j.rl != nil {
			key = "warm_start.lr"
		}
		return 0, nil, j.broken(rec.Step, j.t, err, key)
	}
	rec.Loss, rec.LR, rec.GradNorm = runlog.Num(res.Loss), runlog.Num(res.LR), runlog.Num(res.Norm)
	fields = append([]string{fmt.Sprintf("loss %.4f", res.Loss)}, j.indexers(rec, res)...)
	if j.pref != nil {
		fields = append(fields, j.pref.record(rec, res.Measures)...)
	}
	return res.Tokens, append(fields, fmt.Sprintf("%.0f tokens/s", float64(res.Tokens)/time.Since(began).Seconds())),
		nil
}

// packs is what to learn from packs of the stream.
func (j *job) packs(list []data.Pack) [][]trainer.Sample {
	if j.pref != nil {
		return lay(j.pref.train, list)
	}
	var packs [][]data.Sample
	for _, p := range list {
		packs = append(packs, j.stream.Samples(p))
	}
	return trainer.Supervised(packs)
}

// reinforced takes one step of reinforcement learning.
func (j *job) reinforced(rec *runlog.Record) (tokens int, fields []string, err error) {
	if rec.Step == j.warm+1 {
		if err := j.rl.begin(j, true); err != nil {
			return 0, nil, err
		}
	}
	res, err := j.rl.step(context.WithoutCancel(j.ctx), rec.Step) // a step that has begun is finished
	switch {
	case errors.Is(err, trainer.ErrNotFinite):
		return 0, nil, j.broken(rec.Step, j.rl.t, err, "optim.lr")
	case err != nil:
		return 0, nil, err
	}
	return res.newTokens + res.learnTokens, append(j.indexers(rec, meanIndexers(res.updates)),
		j.rl.record(rec, res)...), nil
}

// broken says what to do about numbers that are not finite.
func (j *job) broken(step int, t *trainer.Trainer, err error, key string) error {
	return fmt.Errorf("step %d: %w first in %s; the update was left out: start anew with a lower %s, from %s", step,
		err, t.FirstNotFinite(), key, j.newestWeights())
}

// newestWeights names where a run that broke can start again.
func (j *job) newestWeights() string {
	parent := filepath.Join(j.out, checkpointsDir)
	names, err := listCheckpoints(parent)
	if err != nil || len(names) == 0 {
		return "the beginning"
	}
	return filepath.Join(parent, names[0], weightsDir)
}
