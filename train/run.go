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
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/plan"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// Options are what the command line adds to a shape.
type Options struct {
	Out    string // folder of the run; "": the shape's
	Resume bool
	Log    *os.File // progress and notes
	// that the run is on, whose plan its time is compared with at the end; nil: of a GPU the one of its name, if any
	Machine *configs.Machine
}

// ErrInterrupted is returned when a run was asked to stop and has saved its state.
var ErrInterrupted = errors.New("interrupted and saved")

// Run trains by a shape. When ctx ends, it finishes and saves the step in progress and returns [ErrInterrupted].
func Run(ctx context.Context, s *configs.Shape, o Options) error {
	out, err := runFolder(s, o.Out, o.Resume)
	if err != nil {
		return err
	}
	return setup.OnRanks(setup.Device(s), &s.Parallel, func(w *parallel.World, r *parallel.Rank) error {
		j := &job{ctx: ctx, shape: s, options: o, folder: out, world: w}
		return errors.Join(j.execute(r), j.close())
	})
}

// job is one run in progress.
type job struct {
	ctx           context.Context
	shape         *configs.Shape
	options       Options
	folder        string
	lock          *os.File // of the folder, which no other process may train into; nil: a new run that has not begun
	world         *parallel.World
	ranks         serve.Ranks // the model on all ranks
	trainer       *trainer.Trainer
	tokenizer     *data.ChatTokenizer
	stops         []int32 // end what the model says; see [serve.Stops]
	corpus        *setup.Corpus
	plan          *plan.Plan
	memory        plan.Memory // by the plan
	stream        *data.Stream
	warmSteps     int         // supervised steps before those of reinforcement learning
	steps         int         // all of them
	learner       *learner    // nil: the run is supervised
	preference    *preference // nil: the run has no pairs
	state         state       // of the last finished step
	engine        *serve.Replicas
	rolloutDevice kernels.Device // of rollouts with numerics of their own; nil: none
	took          []float64      // seconds of the steps that this process took, after a warm start
	metrics       *runlog.Metrics
	progress      *Progress
	gauges        []kernels.Gauge     // of each rank's device; none: it has none
	generations   []runlog.Generation // of the last evaluation
}

// execute takes the run from its beginning, or from its newest checkpoint, to its end.
func (j *job) execute(r *parallel.Rank) (err error) {
	if j.options.Resume {
		if j.lock, err = lockFolder(j.folder); err != nil {
			return err
		}
		if err := removeUnfinished(j.folder); err != nil {
			return err
		}
	}
	if err := j.prepare(r); err != nil {
		return err
	}
	if j.lock == nil {
		if err := j.createFolder(); err != nil {
			return err
		}
	}
	return j.run()
}

func (j *job) close() (err error) {
	if j.learner != nil {
		err = j.learner.logged()
	}
	if j.rolloutDevice != nil {
		err = errors.Join(err, j.rolloutDevice.Close())
	}
	if j.lock != nil {
		err = errors.Join(err, j.lock.Close())
	}
	return err
}

// prepare opens everything that the run needs. It writes nothing.
func (j *job) prepare(r *parallel.Rank) error {
	line, err := j.admit(r)
	if err != nil {
		return err
	}
	if !j.options.Resume {
		j.opening(line)
	}
	m, err := j.loadModel(r)
	if err != nil {
		return err
	}
	if err := j.openLoops(r, m); err != nil {
		return err
	}
	if j.preference != nil { // before a checkpoint replaces the weights
		if err := j.preference.openReference(j.ctx, filepath.Join(j.folder, referenceFile), j.options.Resume,
			j.note); err != nil {
			return err
		}
	}
	if !j.options.Resume {
		return nil
	}
	if err := j.resume(); err != nil {
		return err // one line, so what else is to be said of a resumed run comes after
	}
	j.opening(line)
	return nil
}

// admit reads the data and plans the memory of the run, before it takes any. It returns what the plan says of it, and
// an error where devices have less.
func (j *job) admit(r *parallel.Rank) (line string, err error) {
	if err := plan.ChooseAuto(r.Dev, j.shape, plan.MemoryFor(r.Dev, j.shape)); err != nil {
		return "", err
	}
	p, err := plan.New(r.Dev, j.shape)
	if err != nil {
		return "", err
	}
	if j.corpus, err = setup.OpenCorpus(j.shape, p.Model, p.Tokenizer); err != nil {
		return "", err
	}
	j.tokenizer, j.stops = p.Tokenizer, serve.StopTokens(p.Model, p.Tokenizer)
	if err := p.OpenEngines(r.Dev, j.corpus.Longest(j.shape.Rollout.MaxTokens)); err != nil {
		return "", err
	}
	j.memory, line, err = plan.Admit(r.Dev, p)
	j.plan = p
	return line, err
}

// loadModel loads the weights, distributes them over ranks, and takes the memory that training needs besides.
func (j *job) loadModel(r *parallel.Rank) (*model.Model, error) {
	m, err := setup.LoadModel(j.world.Devices(), j.shape, j.plan.Model.Config)
	if err != nil {
		return nil, err
	}
	if j.ranks, err = serve.Distribute(j.world, r, m); err != nil {
		return nil, err
	}
	if err := j.ranks.Replicas.TrainShards(j.world); err != nil {
		return nil, err
	}
	if err := j.fillMasters(); err != nil {
		return nil, err
	}
	return m, j.plan.ReserveRanks(j.world)
}

// openLoops opens what takes steps: the trainer, the engine of answers, and what preferences or reinforcement learning
// put around them.
func (j *job) openLoops(r *parallel.Rank, m *model.Model) (err error) {
	if err := j.openTrainer(); err != nil {
		return err
	}
	if j.corpus.Pairs != nil {
		if j.preference, err = openPreference(j.shape, j.trainer, j.corpus); err != nil {
			return err
		}
	}
	if setup.Generates(j.shape) {
		if j.engine, err = j.ranks.NewEngines(j.plan.EngineOptions()); err != nil {
			return err
		}
	}
	j.state.Digest = r.Dev.Definition().Digest()
	j.state.Parameters, _ = m.Parameters()
	j.state.Origin = origin{Settings: deciding(j.shape), Schedule: j.trainer.Schedule}
	if j.shape.RL.Objective != "" {
		if err := j.openLearner(r, m); err != nil {
			return err
		}
		j.state.Origin.Schedule = j.learner.trainer.Schedule
	}
	return nil
}

// openTrainer makes the trainer of the run's first stage.
func (j *job) openTrainer() (err error) {
	if samples := j.corpus.Samples(); samples != nil {
		j.stream = data.NewStream(samples, uint64(j.shape.Run.Seed), j.shape.Data.PackRows, j.shape.Run.Epochs)
	}
	if j.steps = j.shape.Run.Steps; j.steps == 0 {
		j.steps = j.stream.Steps(j.shape.Run.Packs)
		if warmup := j.shape.Optim.WarmupSteps; warmup > j.steps {
			return fmt.Errorf("optim.warmup_steps: %d is more than the %d steps of run.epochs = %d: lower it, or "+
				"give a share "+
				"of the steps as optim.warmup_ratio", warmup, j.steps, j.shape.Run.Epochs)
		}
	}
	o, err := setup.TrainerOptions(j.shape, j.steps, j.plan.Keep)
	if err != nil {
		return err
	}
	if j.corpus.Pairs != nil {
		if o.Objective, err = preferenceObjective(j.shape); err != nil {
			return err
		}
	}
	if j.shape.RL.Objective != "" {
		w := j.shape.WarmStart
		j.warmSteps = w.Steps
		j.steps += j.warmSteps
		o.Schedule = optim.Schedule{Kind: "cosine", Peak: w.LR, Final: 0.1, Steps: max(w.Steps, 1)}
		o.Schedule.Warmup = optim.WarmupSteps(w.WarmupSteps, w.WarmupRatio, w.Steps)
	}
	o.Defer = true
	j.trainer = trainer.NewReplicated(j.world, j.ranks.Rank, j.ranks.Replicas, o)
	return nil
}

// resume loads the newest checkpoint.
func (j *job) resume() error {
	st, err := loadCheckpoint(j.world, j.trainer.Replicas, j.folder, j.incompatible, j.note)
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
	if err := j.learner.resume(st.RL); err != nil {
		return err
	}
	return j.learner.copyWeights(j.start())
}

// incompatible says why the run cannot be resumed from a checkpoint to the bits of an uninterrupted run; "": it can.
func (j *job) incompatible(st *state) string {
	if st.Digest != j.state.Digest {
		return fmt.Sprintf("made by definition %.12s, this run uses %.12s: their bits differ", st.Digest,
			j.state.Digest)
	}
	updates := st.Step
	if j.learner != nil {
		updates = 0 // the warm start has a schedule of its own
		if st.RL != nil {
			updates = st.RL.Updates
		}
	}
	if text := st.Origin.differs(j.shape, j.state.Origin.Schedule, updates); text != "" {
		return text
	}
	if st.Step > j.steps {
		return fmt.Sprintf("%d steps are done, run.steps or run.epochs set %d: raise them, or start a new run in "+
			"another --out",
			st.Step-j.warmSteps, j.steps-j.warmSteps)
	}
	return ""
}

// opening notes what the run takes, in memory by the line, and what limits it.
func (j *job) opening(memory string) {
	j.note("%s\n%s", memory, j.plan.Chosen())
	if shortage := j.plan.Shortage(); shortage != "" {
		j.note("%s", shortage)
	}
}

// createFolder creates and locks the folder of a new run. It returns an error where another process was faster.
func (j *job) createFolder() (err error) {
	if err := os.MkdirAll(j.folder, 0o755); err != nil {
		return err
	}
	if j.lock, err = lockFolder(j.folder); err == nil && runlog.HasRun(j.folder) {
		err = fmt.Errorf("%s has a run that another process has just started: continue it with --resume, or give "+
			"another --out",
			j.folder)
	}
	return err
}

// run takes the steps of a prepared run, from the first that is left to the last.
func (j *job) run() (err error) {
	if err := j.writeInputs(); err != nil {
		return err
	}
	j.noteModel()
	j.noteBatches()
	j.openGauges()
	if j.metrics, err = runlog.OpenMetrics(j.folder, j.state.Step); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.metrics.Close()) }()
	if err := runlog.CutEpisodes(j.folder, j.state.Step); err != nil {
		return err
	}
	j.progress = NewProgress(j.options.Log, j.steps, j.state.Step)
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

// writeInputs writes what a resumed run, a replay and the report read of this one's start.
func (j *job) writeInputs() error {
	if err := os.MkdirAll(filepath.Join(j.folder, checkpointsDir), 0o755); err != nil {
		return err
	}
	if err := runlog.WriteFile(filepath.Join(j.folder, runlog.ShapeFile), j.shape.TOML()); err != nil {
		return err
	}
	if j.preference != nil && j.preference.computed {
		return j.preference.write(filepath.Join(j.folder, referenceFile))
	}
	return nil
}

func (j *job) save() error {
	if j.learner != nil {
		if err := j.learner.logged(); err != nil {
			return err
		}
	}
	j.trainer.Finish()
	j.state.RL = nil
	if j.learner != nil && j.state.Step > j.warmSteps {
		j.state.RL = j.learner.state()
	}
	parent := filepath.Join(j.folder, checkpointsDir)
	if err := saveCheckpoint(j.trainer.Replicas, j.tokenizer, filepath.Join(parent, checkpointName(j.state.Step)),
		j.shape.Model.Path, j.state); err != nil {
		return fmt.Errorf("%w: the checkpoint of step %d was not written; fix that, then --resume", err, j.state.Step)
	}
	return prune(parent, j.shape.Run.Keep)
}

// fillMasters fills the masters of trained weights in codes with the numbers that the run starts from.
func (j *job) fillMasters() error {
	if path := j.shape.Model.Path; path != "" {
		return j.ranks.Replicas.LoadMasters(path)
	}
	return j.ranks.Replicas.DrawMasters(j.world, uint64(j.shape.Model.InitSeed))
}
