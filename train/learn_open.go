package train

import (
	"fmt"
	"path/filepath"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/quant"
	"lockstep/serve"
	"lockstep/train/plan"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// openLearner makes the stage of reinforcement learning on the job's model. The device that it may open is closed with
// the job.
func (j *job) openLearner(r *parallel.Rank, m *model.Model) error {
	s := j.s.RL
	settings, err := optim.Resolve(s.Objective, optim.Settings{
		Advantage: s.Advantage, Aggregate: s.Aggregate, ClipBounds: s.ClipBounds, ClipLow: s.ClipLow,
		ClipHigh: s.ClipHigh, DualClip: s.DualClip,
		ImportanceCap: s.ImportanceCap, BandLow: s.BandLow, BandHigh: s.BandHigh, ImportanceLevel: s.ImportanceLevel,
		KLCoef: s.KLCoef, KLEstimator: s.KLEstimator,
		GSPOGradient: s.GSPOGradient, DROBeta: s.DROBeta, DROQuadratic: s.DROQuadratic,
	})
	if err != nil {
		return fmt.Errorf("rl.%w", err)
	}
	l := &learner{s: s, settings: settings, out: j.out, packRows: j.s.Data.PackRows, maxTokens: j.s.Rollout.MaxTokens}
	o, err := setup.TrainerOptions(j.s, j.s.Run.Steps*s.Minibatches*s.Epochs, j.t.Keep)
	if err != nil {
		return err
	}
	if o.Objective, err = optim.New(s.Objective, settings); err != nil {
		return fmt.Errorf("rl.%w", err)
	}
	l.t = trainer.New(r, m, o)
	if len(s.Loss) > 0 {
		if l.custom, err = data.NewProgram(s.Loss, time.Duration(s.Timeout*float64(time.Second))); err != nil {
			return fmt.Errorf("rl.loss: %w", err)
		}
	}
	l.collector = j.newCollector()
	if err := j.openRollout(l); err != nil {
		return err
	}
	if s.KLCoef > 0 {
		if l.reference, err = m.Twin(r.Dev, m.DType); err != nil {
			return err
		}
	}
	j.rl = l
	return nil
}

func (j *job) newCollector() *collector {
	s := j.s.RL
	return &collector{
		Exam: j.corpus.Asked, speak: j.speak, seed: uint64(j.s.Run.Seed), prompts: s.Prompts, size: s.Group,
		staleness: s.Staleness, perStep: s.Minibatches * s.Epochs, dynamic: s.Dynamic,
		mostAsked: mostRounds * s.Prompts * (1 + s.Staleness/(s.Minibatches*s.Epochs)),
		request: serve.Request{
			MaxTokens: j.s.Rollout.MaxTokens, Temperature: float32(s.Temperature), TopP: 1,
			Seed: uint64(j.s.Rollout.Seed), Stop: j.stops,
		},
	}
}

// mostRounds bounds how often a step of dynamic sampling may ask for as many prompts as it needs.
const mostRounds = 16

// speak is the text of an answer, without what ended it.
func (j *job) speak(ids []int32, finish serve.FinishReason) string {
	if finish == serve.FinishStop {
		ids = ids[:len(ids)-1]
	}
	return j.lang.Decode(ids)
}

// openRollout gives the learner its engine: the job's own, on the weights that are trained, or with numerics of its own
// one on another device with a copy of them.
func (j *job) openRollout(l *learner) (err error) {
	n := j.s.Rollout.Numerics
	if n == (configs.Numerics{}) {
		l.engine, l.rank, l.model = j.engine, l.t.Rank, l.t.Model
		return nil
	}
	dev, err := setup.OpenRolloutDevice(j.s)
	if err != nil {
		return err
	}
	j.beside = dev
	m, err := l.t.Model.Twin(dev, l.t.Model.DType)
	if err != nil {
		return err
	}
	r := l.t.Rank.Beside(dev)
	plan.Reserve(r, j.plan.Rollout)
	l.rank, l.model = r, m
	if l.engine, err = serve.NewEngine(r, m, kernels.NewArena(dev), j.plan.EngineOptions()); err != nil {
		return err
	}
	l.sync = func() error { return m.CopyWeights(l.t.Model, quant.Format(n.Weights)) }
	return nil
}

// begin is called once in a process, before its first step of the stage. fresh: it is the first of all, on the weights
// that the stage starts from.
func (l *learner) begin(j *job, fresh bool) error {
	start := filepath.Join(j.out, startDir)
	if fresh {
		for _, p := range l.t.Model.Trained() { // moments of another loss would steer the first updates
			l.t.Rank.Dev.Zero(p.M)
			l.t.Rank.Dev.Zero(p.V)
		}
		if err := saveCheckpoint(l.t.Model, j.lang, start, j.s.Model.Path, j.state); err != nil {
			return err
		}
	}
	if l.reference != nil {
		if err := l.reference.CopyWeights(l.t.Model, quant.AsTrained); err != nil {
			return err
		}
		if !fresh {
			if err := restoreWeights(l.reference, start); err != nil {
				return err
			}
		}
	}
	if l.sync != nil {
		return l.sync()
	}
	return nil
}

// learnerState is what a checkpoint keeps of a learner.
type learnerState struct {
	Updates   int            `json:"updates"`
	Questions string         `json:"questions"` // digest of what is asked
	Collector collectorState `json:"collector"`
}

func (l *learner) state() *learnerState {
	return &learnerState{l.updates, fmt.Sprintf("%016x", l.Exam.Digest()), l.collector.state()}
}

func (l *learner) resume(st *learnerState) error {
	if have := fmt.Sprintf("%016x", l.Exam.Digest()); have != st.Questions {
		return fmt.Errorf("the run was left with other questions: %s, now %s; restore data.path or start anew",
			st.Questions, have)
	}
	l.updates = st.Updates
	l.collector.resume(st.Collector)
	return nil
}
