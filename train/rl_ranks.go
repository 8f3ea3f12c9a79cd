package train

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"lockstep/configs"
	"lockstep/data/atomicfile"
	"lockstep/parallel"
	"lockstep/train/profile"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// TimeOptions say what [TimeSteps] measures.
type TimeOptions struct {
	Steps   int  // of reinforcement learning that are timed, behind one that warms up
	Kernels bool // one more step is taken, of which every kernel is timed
	Out     io.Writer
	Log     *os.File // notes
}

// timed is what steps of reinforcement learning took on some ranks.
type timed struct {
	ranks           int
	device          string // of each
	stepSeconds            // of the step that takes the median; the next rollout waits for the end of an update
	longest         float64
	packs, update   float64 // of a step, see trainer.MeanStep
	answers, tokens int     // of a step; of all its answers, mean
	digest          string  // of weights, optimizer states and answers

	sampled, learned profile.Step // of TimeOptions.Kernels
}

// stepSeconds is a step, and of it sampling and the update.
type stepSeconds struct{ step, rollout, training float64 }

// TimeSteps prints the seconds of the median step of a shape's reinforcement learning on one rank and on the shape's:
// sampling, update, and what is left; and of the longest. The steps are those of a run, warm start before them, and
// nothing is evaluated or saved. It returns an error where weights, optimizer states or answers differ in a bit.
func TimeSteps(ctx context.Context, s *configs.Shape, o TimeOptions) error {
	if err := setup.CountRanks(setup.Device(s), &s.Parallel); err != nil {
		return err
	}
	if s.Parallel.Ranks < 2 {
		return fmt.Errorf("parallel.ranks: is %d: give --ranks 2 or more to compare with one", s.Parallel.Ranks)
	}
	if o.Steps < 1 {
		return fmt.Errorf("--steps %d: want at least 1", o.Steps)
	}
	many := *s
	many.Data.EvalSamples, many.Run.VerifyTokens, many.Run.Steps = 0, 0, max(s.Run.Steps, o.Steps+1)
	one := many
	one.Parallel = configs.Default().Parallel
	var of [2]timed
	for i, s := range []*configs.Shape{&one, &many} {
		var err error
		if of[i], err = timeOnRanks(ctx, s, o); err != nil {
			return err
		}
	}
	if err := printSteps(o, s, of[0], of[1]); err != nil {
		return err
	}
	if o.Kernels {
		err := errors.Join(
			profile.Print(o.Out, "sampling, rewards", of[0].sampled, of[1].sampled, s.Parallel.Ranks),
			profile.Print(o.Out, "update", of[0].learned, of[1].learned, s.Parallel.Ranks))
		if err != nil {
			return err
		}
	}
	if of[0].digest != of[1].digest {
		return fmt.Errorf("the ranks came to other weights, states or answers: SHA-256 %.16s, one rank %.16s",
			of[1].digest, of[0].digest)
	}
	_, err := fmt.Fprintf(o.Out, "\nweights, optimizer states and answers are the same on every bit: SHA-256 %.16s\n",
		of[0].digest)
	return err
}

func printSteps(o TimeOptions, s *configs.Shape, one, many timed) error {
	fmt.Fprintf(o.Out, "%s, %s: %d steps of %d answers, %d tokens, behind %d of warm start; each rank %s\n\n",
		s.Run.Name, s.Model.DType, o.Steps, many.answers, many.tokens, s.WarmStart.Steps, many.device)
	tab := tabwriter.NewWriter(o.Out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tab, "one rank, s\t%d ranks, s\tratio\t  weights %s, experts on %d\n", many.ranks,
		s.Parallel.Weights, s.Parallel.Experts)
	line := func(what string, one, many float64) {
		fmt.Fprintf(tab, "%.4f\t%.4f\t%.2f\t  %s\n", one, many, one/many, what)
	}
	line("a step", one.step, many.step)
	line("sampling, rewards", one.rollout, many.rollout)
	line("update", one.training, many.training)
	line("of it on the device: packs", one.packs, many.packs)
	line("the optimizer, behind which the next step begins", one.update, many.update)
	line("the rest", one.step-one.rollout-one.training, many.step-many.rollout-many.training)
	line("the longest step", one.longest, many.longest)
	return tab.Flush()
}

// timeOnRanks takes the steps on the ranks of a shape.
func timeOnRanks(ctx context.Context, s *configs.Shape, o TimeOptions) (t timed, err error) {
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return t, err
	}
	defer os.RemoveAll(dir)
	err = setup.OnRanks(setup.Device(s), &s.Parallel, func(w *parallel.World, r *parallel.Rank) error {
		j := &job{ctx: ctx, shape: s, options: Options{Log: o.Log}, folder: dir, world: w}
		return errors.Join(t.take(j, r, o), j.close())
	})
	return t, err
}

// take is the warm start, a step that warms up, and the steps that are timed.
func (t *timed) take(j *job, r *parallel.Rank, o TimeOptions) error {
	var kernels profile.Ranks
	var err error
	if o.Kernels {
		if kernels, err = profile.Of(j.world); err != nil {
			return err
		}
	}
	if err := j.prepare(r); err != nil {
		return err
	}
	if err := j.warmStart(); err != nil {
		return err
	}
	if err := t.timeSteps(j, o.Steps); err != nil {
		return err
	}
	t.ranks, t.device = j.world.Size(), r.Dev.Name()
	if o.Kernels {
		if err := t.profile(j, kernels, j.warmSteps+o.Steps+2); err != nil {
			return err
		}
	}
	j.trainer.Finish()
	return t.hash(j)
}

// warmStart takes the steps on worked solutions, and leaves their weights to reinforcement learning.
func (j *job) warmStart() error {
	for n := range j.warmSteps {
		if _, _, err := j.supervisedStep(&runlog.Record{Step: n + 1}); err != nil || j.ctx.Err() != nil {
			return errors.Join(err, j.ctx.Err())
		}
	}
	j.trainer.Finish()
	j.trainer.Replicas.ClearMoments()
	return j.learner.copyWeights("")
}

// timeSteps takes one step that warms up, and then times so many. A step ends when the host has what the next begins
// with; the first of them begins, and the last ends, with idle devices.
func (t *timed) timeSteps(j *job, steps int) error {
	var began time.Time
	var took []stepSeconds
	var times func() []trainer.RankTimes
	for n := range steps + 1 {
		res, err := j.learner.step(j.ctx, j.warmSteps+n+1)
		if err != nil {
			return err
		}
		if n == 0 || n == steps {
			if err := j.wait(); err != nil {
				return err
			}
		}
		if n == 0 {
			times, began = j.learner.trainer.TimeSteps(), time.Now()
			continue
		}
		now := time.Now()
		took = append(took, stepSeconds{now.Sub(began).Seconds(), res.rolloutSeconds, res.trainSeconds})
		began = now
		t.answers, t.tokens = len(res.episodes), t.tokens+res.answerTokens
	}
	slices.SortFunc(took, func(a, b stepSeconds) int { return cmp.Compare(a.step, b.step) })
	t.stepSeconds, t.longest, t.tokens = took[len(took)/2], took[len(took)-1].step, t.tokens/steps
	t.packs, t.update = trainer.MeanStep(times(), steps)
	return nil
}

// profile takes one more step, and times the kernels of its sampling and those of its update.
func (t *timed) profile(j *job, kernels profile.Ranks, step int) (err error) {
	t.sampled.Seconds, t.learned.Seconds = t.rollout, t.training
	j.learner.sampled = func() (err error) {
		t.sampled.Times, err = kernels.Stop(j.world)
		kernels.Start()
		return err
	}
	kernels.Start()
	if _, err := j.learner.step(j.ctx, step); err != nil {
		return err
	}
	j.learner.sampled = nil
	t.learned.Times, err = kernels.Stop(j.world)
	return err
}

// wait returns when every rank has finished what was enqueued.
func (j *job) wait() error {
	return j.world.Run(func(r *parallel.Rank) error { return r.Dev.Sync() })
}

// hash takes the digest of what a checkpoint has, and of the answers.
func (t *timed) hash(j *job) error {
	sum := sha256.New()
	if err := j.trainer.Replicas.WriteTrained(sum); err != nil {
		return err
	}
	if err := j.learner.logged(); err != nil {
		return err
	}
	answers, err := atomicfile.Read(filepath.Join(j.folder, runlog.EpisodesFile))
	if err != nil {
		return err
	}
	sum.Write(answers)
	t.digest = fmt.Sprintf("%x", sum.Sum(nil))
	return nil
}
