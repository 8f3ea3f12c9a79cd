package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/serve"
)

// Options are what the command line adds to a shape.
type Options struct {
	Out    string // folder of the run; "": the shape's
	Resume bool
	Log    *os.File // progress and notes
}

// ErrInterrupted is returned when a run was asked to stop and has saved its state.
var ErrInterrupted = errors.New("interrupted and saved")

// Run trains by a shape. When ctx ends, the step in flight is finished and saved, and the result is ErrInterrupted.
func Run(ctx context.Context, s *configs.Shape, o Options) error {
	out, err := runFolder(s, o.Out, o.Resume)
	if err != nil {
		return err
	}
	dev, err := devices.Open(Device(s))
	if err != nil {
		return err
	}
	defer dev.Close()
	return parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		j := &job{ctx: ctx, s: s, o: o, out: out}
		return errors.Join(j.whole(r), j.close())
	})
}

// job is one run in progress.
type job struct {
	ctx      context.Context
	s        *configs.Shape
	o        Options
	out      string
	lock     *os.File // of the folder, which nobody else may train into; nil: a new run that has not begun
	t        *trainer
	lang     *data.Language
	stops    []int32 // end what the model says; see [serve.Stops]
	corpus   *corpus
	plan     *planner
	takes    Memory // by the plan
	stream   *data.Stream
	warm     int         // supervised steps before those of reinforcement learning
	steps    int         // all of them
	rl       *learner    // nil: the run is supervised
	pref     *preference // nil: the run has no pairs
	state    state       // of the last finished step
	engine   *serve.Engine
	beside   kernels.Device // of rollouts with numerics of their own; nil: none
	metrics  *Metrics
	progress *Progress
	gauge    kernels.Gauge // nil: the device has none
	samples  []Generation  // of the last evaluation
}

// whole is the run from its beginning, or from its newest checkpoint, to its end.
func (j *job) whole(r *parallel.Rank) (err error) {
	if j.o.Resume {
		if j.lock, err = occupy(j.out); err != nil {
			return err
		}
		if err := sweep(j.out); err != nil {
			return err
		}
	}
	if err := j.prepare(r); err != nil {
		return err
	}
	if j.lock == nil {
		if err := j.found(); err != nil {
			return err
		}
	}
	return j.run()
}

func (j *job) close() (err error) {
	if j.beside != nil {
		err = j.beside.Close()
	}
	if j.lock != nil {
		err = errors.Join(err, j.lock.Close())
	}
	return err
}

// prepare opens everything before anything is written.
func (j *job) prepare(r *parallel.Rank) error {
	p, err := newPlanner(r.Dev, j.s)
	if err != nil {
		return err
	}
	if j.corpus, err = openCorpus(j.s, p.m, p.lang); err != nil {
		return err
	}
	j.lang, j.stops = p.lang, serve.Stops(p.m, p.lang)
	if err := p.openEngines(r.Dev, j.corpus.longest(j.s.Rollout.MaxTokens)); err != nil {
		return err
	}
	var line string
	if j.takes, line, err = admit(r.Dev, p); err != nil {
		return err
	}
	if !j.o.Resume {
		j.note("%s\n%s", line, p.chosen())
	}
	j.plan = p
	m, err := fillModel(r.Dev, j.s, p.m.Config)
	if err != nil {
		return err
	}
	m.TrainAll()
	reserve(r, p.r)
	if err := j.openTrainer(r, m); err != nil {
		return err
	}
	if j.corpus.pairs != nil {
		if j.pref, err = openPreference(j.s, j.t, j.corpus); err != nil {
			return err
		}
	}
	if generates(j.s) {
		if j.engine, err = serve.NewEngine(r, m, kernels.NewArena(r.Dev), p.engineOptions()); err != nil {
			return err
		}
	}
	j.state.Digest = r.Dev.Definition().Digest()
	j.state.Parameters, _ = m.Parameters()
	j.state.Origin = origin{Settings: deciding(j.s), Schedule: j.t.schedule}
	if j.s.RL.Objective != "" {
		if err := j.openLearner(r, m); err != nil {
			return err
		}
		j.state.Origin.Schedule = j.rl.t.schedule
	}
	if j.pref != nil { // before a checkpoint replaces the weights
		if err := j.pref.refer(j.ctx, filepath.Join(j.out, referenceFile), j.o.Resume, j.note); err != nil {
			return err
		}
	}
	if !j.o.Resume {
		return nil
	}
	if err := j.resume(); err != nil {
		return err // one line, so what else is to be said of a resumed run comes after
	}
	j.note("%s\n%s", line, p.chosen())
	return nil
}

// openTrainer makes the trainer of the run's first stage.
func (j *job) openTrainer(r *parallel.Rank, m *model.Model) (err error) {
	if lessons := j.corpus.lessons(); lessons != nil {
		j.stream = data.NewStream(lessons, uint64(j.s.Run.Seed), j.s.Data.PackRows, j.s.Run.Epochs)
	}
	if j.steps = j.s.Run.Steps; j.steps == 0 {
		j.steps = j.stream.Steps(j.s.Run.Packs)
		if warmup := j.s.Optim.WarmupSteps; warmup > j.steps {
			return fmt.Errorf("optim.warmup_steps: %d is more than the %d steps of run.epochs = %d: lower it, or "+
				"give a share "+
				"of the steps as optim.warmup_ratio", warmup, j.steps, j.s.Run.Epochs)
		}
	}
	if j.t, err = newTrainer(j.s, j.steps); err != nil {
		return err
	}
	j.t.r, j.t.m, j.t.keep = r, m, j.plan.keep
	if j.s.RL.Objective == "" {
		return nil
	}
	w := j.s.WarmStart
	j.warm = w.Steps
	j.steps += j.warm
	j.t.schedule = optim.Schedule{Kind: "cosine", Peak: w.LR, Final: 0.1, Steps: max(w.Steps, 1)}
	j.t.schedule.Warmup = optim.WarmupSteps(w.WarmupSteps, w.WarmupRatio, w.Steps)
	return nil
}

// resume loads the newest checkpoint.
func (j *job) resume() error {
	st, err := loadCheckpoint(j.t.m, j.out, j.unlike, j.note)
	if err != nil || st == nil {
		return err
	}
	st.Origin.Settings, st.Origin.Schedule = j.state.Origin.Settings, j.state.Origin.Schedule
	j.state = *st
	if j.stream != nil {
		if err := j.stream.Resume(st.Data); err != nil {
			return err
		}
	}
	if st.RL == nil {
		return nil
	}
	if err := j.rl.resume(st.RL); err != nil {
		return err
	}
	return j.rl.begin(j, false)
}

// unlike says why the run cannot go on from a checkpoint with the bits of one that went on from its start; "": it can.
func (j *job) unlike(st *state) string {
	if st.Digest != j.state.Digest {
		return fmt.Sprintf("made by definition %.12s, this run computes by %.12s: their bits differ", st.Digest,
			j.state.Digest)
	}
	updates := st.Step
	if j.rl != nil {
		updates = 0 // the warm start has a schedule of its own
		if st.RL != nil {
			updates = st.RL.Updates
		}
	}
	if text := st.Origin.differs(j.s, j.state.Origin.Schedule, updates); text != "" {
		return text
	}
	if st.Step > j.steps {
		return fmt.Sprintf("%d steps are taken, run.steps or run.epochs ask for %d: give more, or start anew in "+
			"another --out",
			st.Step-j.warm, j.steps-j.warm)
	}
	return ""
}

func (j *job) note(format string, args ...any) {
	if j.progress != nil {
		j.progress.Note(format, args...)
		return
	}
	fmt.Fprintf(j.o.Log, format+"\n", args...)
}

// found makes the folder of a new run, unless another process was faster.
func (j *job) found() (err error) {
	if err := os.MkdirAll(j.out, 0o755); err != nil {
		return err
	}
	if j.lock, err = occupy(j.out); err == nil && hasRun(j.out) {
		err = fmt.Errorf("%s holds a run that began meanwhile: --resume continues it, another --out starts anew", j.out)
	}
	return err
}

func (j *job) run() (err error) {
	if err := os.MkdirAll(filepath.Join(j.out, checkpointsDir), 0o755); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(j.out, shapeFile), j.s.TOML()); err != nil {
		return err
	}
	if j.pref != nil && j.pref.computed {
		if err := j.pref.write(filepath.Join(j.out, referenceFile)); err != nil {
			return err
		}
	}
	total, active := j.t.m.Parameters()
	j.note("%s: %s, %s parameters (%s active), %s, definition %.12s", j.out, j.t.m.Family, compact(float64(total)),
		compact(float64(active)), j.t.r.Dev.Name(), j.state.Digest)
	if opened := j.t.m.Opened(); opened != "" {
		j.note("%s", opened)
	}
	j.showSample()
	for _, field := range j.corpus.ignored() {
		j.note("%s", field)
	}
	j.openGauge()
	if j.metrics, err = OpenMetrics(j.out, j.state.Step); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.metrics.Close()) }()
	if err := cutEpisodes(j.out, j.state.Step); err != nil {
		return err
	}
	j.progress = NewProgress(j.o.Log, j.steps, j.state.Step)
	defer j.progress.Close()
	for j.state.Step < j.steps {
		if err := j.step(); err != nil {
			return err
		}
		if j.ctx.Err() != nil {
			if err := j.save(); err != nil {
				return err
			}
			return ErrInterrupted
		}
	}
	return j.finish()
}

func (j *job) save() error {
	j.state.RL = nil
	if j.rl != nil && j.state.Step > j.warm {
		j.state.RL = j.rl.state()
	}
	parent := filepath.Join(j.out, checkpointsDir)
	if err := saveCheckpoint(j.t.m, j.lang, filepath.Join(parent, checkpointName(j.state.Step)),
		j.s.Model.Path, j.state); err != nil {
		return fmt.Errorf("%w: the checkpoint of step %d was left out; mend that, then --resume", err, j.state.Step)
	}
	return prune(parent, j.s.Run.Keep)
}
