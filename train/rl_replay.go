package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"lockstep/configs"
	"lockstep/parallel"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// Replayed is the result of a replay.
type Replayed struct {
	Answers, Tokens int // scored again
	Differ          int // log-probabilities that differ on a bit
	Steps           int // trained again
	Versions        int // of weights that chose tokens
	Checkpoints     int // whose weights and optimizer were compared, byte for byte
	First           string
	Digest          string // of the definition
}

func (r *Replayed) String() string {
	return fmt.Sprintf("replay: %d mismatched of %d log-probs of %d answers by %d versions of the weights over %d "+
		"steps; %d checkpoints equal, definition %.12s",
		r.Differ, r.Tokens, r.Answers, r.Versions, r.Steps, r.Checkpoints, r.Digest)
}

// Err is nil where every bit agrees.
func (r *Replayed) Err() error {
	if r.Differ > 0 {
		return fmt.Errorf("replay: %d of %d log-probs differ: %s", r.Differ, r.Tokens, r.First)
	}
	return nil
}

// Replay takes a run of reinforcement learning from the checkpoint that its stage started from, trains every recorded
// step again on the recorded answers, and scores each recorded token with the training forward of the version of the
// weights that chose it. Log-probabilities and the run's checkpoints must come out the same, bit for bit. set overrides
// keys that change no bit, such as the device.
func Replay(ctx context.Context, dir string, set []string, log *os.File) (*Replayed, error) {
	if !runlog.HasRun(dir) {
		return nil, fmt.Errorf("%s has no run to replay: no %s in it, give a folder written by lockstep train", dir,
			runlog.ShapeFile)
	}
	s, err := configs.Load(filepath.Join(dir, runlog.ShapeFile), set)
	if err != nil {
		return nil, err
	}
	if s.RL.Objective == "" {
		return nil, fmt.Errorf("%s: a supervised run has no sampled answers to replay", dir)
	}
	record, err := readRecord(dir)
	if err != nil {
		return nil, err
	}
	p := &replay{job: &job{ctx: ctx, shape: s, options: Options{Log: log}, folder: dir}, record: record,
		result: &Replayed{}}
	err = setup.OnRanks(setup.Device(s), &s.Parallel, func(w *parallel.World, r *parallel.Rank) error {
		p.job.world, p.result.Digest = w, r.Dev.Definition().Digest()
		err := p.run(r)
		if p.job.rolloutDevice != nil {
			err = errors.Join(err, p.job.rolloutDevice.Close())
		}
		return err
	})
	return p.result, err
}

// runRecord holds the answers of a run, by the step that learned from them and by the versions of the weights that
// sampled their tokens.
type runRecord struct {
	all       []*runlog.Episode
	bySteps   map[int][]*runlog.Episode
	byVersion map[int][]*runlog.Episode
	last      int // step
}

func readRecord(dir string) (*runRecord, error) {
	rec := &runRecord{bySteps: map[int][]*runlog.Episode{}, byVersion: map[int][]*runlog.Episode{}}
	err := runlog.EachEpisode(dir, func(e *runlog.Episode, _ []byte) error {
		rec.all = append(rec.all, e)
		if e.Learned {
			rec.bySteps[e.Step] = append(rec.bySteps[e.Step], e)
		}
		for i, v := range e.Versions {
			if i == 0 || v != e.Versions[i-1] {
				rec.byVersion[v] = append(rec.byVersion[v], e)
			}
		}
		rec.last = max(rec.last, e.Step)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no %s: the run has not sampled any answers yet", dir, runlog.EpisodesFile)
	}
	return rec, err
}

type replay struct {
	job    *job
	record *runRecord
	result *Replayed
}

func (p *replay) run(r *parallel.Rank) error {
	j := p.job
	if err := j.prepare(r); err != nil {
		return err
	}
	start := j.start()
	st, err := readState(start)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", start, err)
	case st.Digest != j.state.Digest:
		return fmt.Errorf("%s: made by definition %.12s, this replay uses %.12s: use the run's device and settings",
			start, st.Digest, j.state.Digest)
	}
	if err := p.check(); err != nil {
		return err
	}
	if err := restore(j.world, j.trainer.Replicas, start); err != nil {
		return err
	}
	if err := j.learner.copyWeights(start); err != nil {
		return err
	}
	j.progress = NewProgress(j.options.Log, p.record.last, j.warmSteps)
	defer j.progress.Close()
	for step := j.warmSteps + 1; step <= p.record.last; step++ {
		if err := j.ctx.Err(); err != nil {
			return err
		}
		if err := p.step(step); err != nil {
			return err
		}
		j.progress.Step(step, fmt.Sprintf("%d log-probs, %d differ", p.result.Tokens, p.result.Differ))
	}
	return p.complete()
}

// check returns an error that names the first recorded answer that the run's model and shape cannot have sampled.
func (p *replay) check() error {
	m, packRows := p.job.trainer.Model, p.job.shape.Data.PackRows
	for _, e := range p.record.all {
		what := ""
		for _, id := range slices.Concat(e.Prompt, e.IDs) {
			if id < 0 || int(id) >= m.Vocab {
				what = fmt.Sprintf("id %d of a vocabulary of %d", id, m.Vocab)
			}
		}
		if n := len(e.Prompt) + len(e.IDs); n-1 > packRows || n > m.MaxLength {
			what = fmt.Sprintf("%d tokens, in packs of %d rows and %d positions", n, packRows, m.MaxLength)
		}
		if e.Step <= p.job.warmSteps || !slices.IsSorted(e.Versions) || e.Versions[0] < 0 {
			what = fmt.Sprintf("step %d and versions from %d to %d", e.Step, e.Versions[0],
				e.Versions[len(e.Versions)-1])
		}
		if what != "" {
			return fmt.Errorf("%s: prompt %d, sample %d has %s: the record is damaged",
				filepath.Join(p.job.folder, runlog.EpisodesFile), e.Asked, e.Sample, what)
		}
	}
	return nil
}

// complete returns an error where something that is recorded was compared with nothing.
func (p *replay) complete() error {
	recorded := 0
	for _, e := range p.record.all {
		recorded += len(e.IDs)
	}
	switch missing := recorded - p.result.Tokens; {
	case recorded == 0:
		return fmt.Errorf("%s has no answers: nothing was compared",
			filepath.Join(p.job.folder, runlog.EpisodesFile))
	case missing > 0:
		return fmt.Errorf("%s: %d of %d tokens were sampled by versions of the weights that training does not come to",
			filepath.Join(p.job.folder, runlog.EpisodesFile), missing, recorded)
	case p.result.Checkpoints == 0:
		return fmt.Errorf("%s has no checkpoint of the steps 1 to %d: none was compared",
			filepath.Join(p.job.folder, checkpointsDir), p.record.last)
	}
	return nil
}

// step scores the tokens that the present weights sampled, and takes the step again.
func (p *replay) step(step int) error {
	l := p.job.learner
	if list := p.record.byVersion[l.updates]; len(list) > 0 {
		p.result.Versions++
		p.score(list, l.updates)
	}
	episodes := p.record.bySteps[step]
	if len(episodes) != l.prompts*l.groupSize {
		return fmt.Errorf("%s: step %d has %d answers, the shape asks for %d",
			filepath.Join(p.job.folder, runlog.EpisodesFile),
			step, len(episodes), l.prompts*l.groupSize)
	}
	res := learningResult{episodes: episodes}
	if err := l.update(p.job.ctx, l.prepare(episodes)(), &res); err != nil {
		return err
	}
	if l.syncRollout != nil {
		if err := l.syncRollout(); err != nil {
			return err
		}
	}
	p.result.Steps++
	return p.checkpoint(step)
}

// score compares the log-probabilities that were recorded under a version with the training forward of the rollout's
// model.
func (p *replay) score(list []*runlog.Episode, version int) {
	l := p.job.learner
	samples := make([]trainer.Sample, len(list))
	for i, e := range list {
		samples[i] = sampleOf(e, version)
	}
	trainer.EachLogProb(l.rolloutRank, l.rolloutModel, l.packRows, samples, func(i int, logprob []float32) {
		samples[i].Old = logprob
	})
	for i, e := range list {
		if e.Versions[0] == version {
			p.result.Answers++
		}
		for k, v := range e.Versions {
			if v != version {
				continue
			}
			p.result.Tokens++
			got := samples[i].Old[len(e.Prompt)-1+k]
			if math.Float32bits(got) != math.Float32bits(float32(e.LogProbs[k])) {
				p.result.Differ++
				if p.result.First == "" {
					p.result.First = fmt.Sprintf("step %d, prompt %d, sample %d, token %d of version %d: recorded %g, "+
						"scored %g", e.Step, e.Asked, e.Sample, k, version, float32(e.LogProbs[k]), got)
				}
			}
		}
	}
}

// checkpoint compares weights and optimizer with the run's checkpoint of a step, if the run still has it.
func (p *replay) checkpoint(step int) error {
	dir := filepath.Join(p.job.folder, checkpointsDir, checkpointName(step))
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	recorded, err := checkSums(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	tmp, err := os.MkdirTemp("", "lockstep-replay-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	again := filepath.Join(tmp, checkpointName(step))
	if err := saveCheckpoint(p.job.trainer.Replicas, nil, again, p.job.shape.Model.Path, state{}); err != nil {
		return err
	}
	files, err := sums(again)
	if err != nil {
		return err
	}
	for name, sum := range files {
		if filepath.Ext(name) == ".safetensors" && recorded[name] != sum {
			return fmt.Errorf("%s: %s differs from what training on the recorded answers gives", dir, name)
		}
	}
	p.result.Checkpoints++
	return nil
}
