package train

import (
	"fmt"
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
)

// openLearner prepares reinforcement learning on the job's model. A rollout device that it opens is closed with the
// job.
func (j *job) openLearner(r *parallel.Rank, m *model.Model) error {
	s := j.shape.RL
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
	l := &learner{rl: s, objective: settings, folder: j.folder, packRows: j.shape.Data.PackRows,
		maxTokens: j.shape.Rollout.MaxTokens}
	o, err := setup.TrainerOptions(j.shape, j.shape.Run.Steps*s.Minibatches*s.Epochs, j.trainer.Keep)
	if err != nil {
		return err
	}
	if o.Objective, err = optim.New(s.Objective, settings); err != nil {
		return fmt.Errorf("rl.%w", err)
	}
	o.Defer = true
	l.trainer = j.trainer.With(o)
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
		if l.reference, err = m.EmptyCopy(r.Dev, m.DType, model.Encode{}); err != nil {
			return err
		}
	}
	j.learner = l
	return nil
}

func (j *job) newCollector() *collector {
	s := j.shape.RL
	return &collector{
		JudgedQuestions: j.corpus.TrainQuestions, decode: j.decode, seed: uint64(j.shape.Run.Seed), prompts: s.Prompts,
		groupSize: s.Group,
		exactKL:   s.ExactKL, staleness: s.Staleness, updatesPerStep: s.Minibatches * s.Epochs, dynamic: s.Dynamic,
		maxAsked: mostRounds * s.Prompts * (1 + s.Staleness/(s.Minibatches*s.Epochs)),
		request: serve.Request{
			MaxTokens: j.shape.Rollout.MaxTokens, Temperature: float32(s.Temperature), TopP: 1,
			Seed: uint64(j.shape.Rollout.Seed), Stop: j.stops,
		},
	}
}

// mostRounds bounds how often a step of dynamic sampling may ask for as many prompts as it needs.
const mostRounds = 16

// decode returns the text of an answer, without the token that ended it.
func (j *job) decode(ids []int32, finish serve.FinishReason) string {
	if finish == serve.FinishStop {
		ids = ids[:len(ids)-1]
	}
	return j.tokenizer.Decode(ids)
}

// openRollout gives the learner its engines: those of the job, on the trained weights, or with rollout.numerics one on
// a second device with a copy of the weights. With rl.staleness what is learned depends on which answers are complete
// first: then the first rank has all of them, so that no bit depends on the number of ranks. Where experts are divided
// the others stand by with theirs.
func (j *job) openRollout(l *learner) (err error) {
	n := j.shape.Rollout.Numerics
	if n == (configs.Numerics{}) {
		l.engine, l.rolloutRank, l.rolloutModel = j.engine, l.trainer.Rank, l.trainer.Model
		if j.shape.RL.Staleness > 0 {
			l.engine = serve.OneReplica(j.engine.First())
		}
		return nil
	}
	dev, err := setup.OpenRolloutDevice(j.shape)
	if err != nil {
		return err
	}
	j.rolloutDevice = dev
	rounding := model.Encode{As: quant.Encoding(n.Weights), Projections: true}
	m, err := l.trainer.Model.EmptyCopy(dev, l.trainer.Model.DType, rounding)
	if err != nil {
		return err
	}
	r := l.trainer.Rank.WithDevice(dev)
	plan.Reserve(r, j.plan.Rollout)
	l.rolloutRank, l.rolloutModel = r, m
	e, err := serve.NewEngine(r, m, kernels.NewArena(dev), j.plan.EngineOptions())
	if err != nil {
		return err
	}
	l.engine = serve.OneReplica(e)
	l.syncRollout = func() error { return m.CopyWeights(l.trainer.Model, rounding) }
	return nil
}

// copyWeights gives the reference the weights of the stage's first checkpoint, start, and the rollout those of the
// trainer. It is called once in a process, before its first step of the stage. start "": the trainer has the weights
// that the stage begins with.
func (l *learner) copyWeights(start string) error {
	if l.reference != nil {
		if err := l.reference.CopyWeights(l.trainer.Model, model.Encode{}); err != nil {
			return err
		}
		if start != "" {
			if err := restoreWeights(l.reference, start); err != nil {
				return err
			}
		}
	}
	if l.syncRollout != nil {
		return l.syncRollout()
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
	return &learnerState{l.updates, fmt.Sprintf("%016x", l.JudgedQuestions.Digest()), l.collector.state()}
}

func (l *learner) resume(st *learnerState) error {
	if have := fmt.Sprintf("%016x", l.JudgedQuestions.Digest()); have != st.Questions {
		return fmt.Errorf("the checkpoint was made with other questions: %s, now %s; restore data.path or start "+
			"a new run",
			st.Questions, have)
	}
	l.updates = st.Updates
	l.collector.resume(st.Collector)
	return nil
}
