package train

import (
	"context"
	"slices"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/runlog"
	"lockstep/train/trainer"
)

// learner takes the steps of reinforcement learning: it samples answers with the present weights, has them rewarded,
// computes advantages, and updates the weights by an objective.
type learner struct {
	*collector
	trainer       *trainer.Trainer
	rl            configs.RL
	objective     optim.Settings // of the objective, complete
	folder        string
	packRows      int
	maxTokens     int
	rolloutRank   *parallel.Rank // that samples, with its model: the trainer's own, or a copy with numerics of its own
	rolloutModel  *model.Model
	syncRollout   func() error  // copies the trained weights to the rollout's; nil: they are the same
	custom        *data.Program // whose loss it is; nil: the objective's
	reference     *model.Model  // nil: no KL to it
	customLoss    float64       // of the last minibatch
	updates       int           // optimizer steps of the stage
	updatesBefore int           // updates before the last step
	opened        *openStep     // that has begun while answers are sampled; nil: none
	sampled       func() error  // is called between sampling and the update; nil: nothing is
	writing       chan error    // how the writing of the last step's answers ended; nil: see logged
}

// learningResult is what one step of reinforcement learning measured.
type learningResult struct {
	updates        []update         // its optimizer steps, in order
	divergence     optim.Divergence // rollout against trainer, before the first update
	exact          serve.Divergence // of the answers that keep their logits
	episodes       []*runlog.Episode
	discarded      int     // episodes sampled and left out
	rolloutSeconds float64 // seconds
	trainSeconds   float64
	answerTokens   int // of answers that were learned from or left out
	sampled        int // tokens that the engine sampled meanwhile
	trainRows      int // rows of forward and backward
	earlyPacks     int // computed while other answers were sampled
}

// update is one optimizer step of reinforcement learning.
type update struct {
	trainer.StepResult
	// drift compares the policy before the update with the one that ratios are relative to: the rollout, or with
	// rl.proximal the trainer's own before the step's first update.
	drift optim.Divergence
}

// step collects groups of answers and updates the weights on them. step counts from the beginning of the run, from 1.
func (l *learner) step(ctx context.Context, step int) (res learningResult, err error) {
	began := time.Now()
	drawn := l.engine.Counters().Generated
	if l.rl.Stream {
		l.early = func(g *group, least int) error { return l.learnEarly(g, least, &res) }
	}
	groups, left, err := l.next(ctx)
	if err != nil {
		return res, err
	}
	l.pause()
	l.updatesBefore = l.updates
	res.rolloutSeconds, res.sampled = time.Since(began).Seconds()-res.trainSeconds, l.engine.Counters().Generated-drawn
	l.advantages(groups)
	for _, g := range groups {
		for i := range g.Episodes {
			g.Episodes[i].Step, g.Episodes[i].Learned = step, true
			res.episodes = append(res.episodes, &g.Episodes[i])
		}
	}
	for _, g := range left {
		for i := range g.Episodes {
			g.Episodes[i].Step = step
			res.discarded++
			res.answerTokens += len(g.Episodes[i].IDs)
		}
	}
	prepared := l.prepare(res.episodes)
	res.exact = serve.MeasureDivergence(l.trainer.Rank, l.trainer.Model, l.engine.TakeKept())
	if l.sampled != nil {
		if err := l.sampled(); err != nil {
			return res, err
		}
	}
	began = time.Now()
	if err := l.update(ctx, prepared(), &res); err != nil {
		return res, err
	}
	if l.syncRollout != nil {
		if err := l.syncRollout(); err != nil {
			return res, err
		}
	}
	l.updated(l.updates)
	res.trainSeconds += time.Since(began).Seconds()
	return res, l.log(slices.Concat(episodesOf(groups), episodesOf(left)))
}

// log writes answers to the folder while the next ones are sampled. They are not to be changed any more.
func (l *learner) log(answers []*runlog.Episode) error {
	if err := l.logged(); err != nil {
		return err
	}
	done := make(chan error, 1)
	l.writing = done
	go func() { done <- runlog.AppendEpisodes(l.folder, answers) }()
	return nil
}

// logged waits until the answers of all steps so far are in the folder.
func (l *learner) logged() error {
	if l.writing == nil {
		return nil
	}
	err := <-l.writing
	l.writing = nil
	return err
}

// episodesOf lists the answers of groups.
func episodesOf(groups []*group) (list []*runlog.Episode) {
	for _, g := range groups {
		for i := range g.Episodes {
			list = append(list, &g.Episodes[i])
		}
	}
	return list
}

// advantages compares the rewards within each group. The rewards of overlong answers are lowered first.
func (l *learner) advantages(groups []*group) {
	var rewards []float64
	for _, g := range groups {
		for i := range g.Episodes {
			e := &g.Episodes[i]
			reward := e.Reward
			if l.rl.OverlongRows > 0 {
				reward += data.Overlong(len(e.IDs), l.maxTokens, l.rl.OverlongRows)
			}
			rewards = append(rewards, reward)
		}
	}
	values := optim.GroupAdvantages(l.objective.Advantage, rewards, l.groupSize)
	for _, g := range groups {
		for i := range g.Episodes {
			g.Episodes[i].Advantage, values = values[0], values[1:]
		}
	}
}

// prepared is what the host makes of a step's answers before the update.
type prepared struct {
	samples []trainer.Sample
	known   int                  // of the samples, the first ones, that were there while others were sampled
	packed  *trainer.GlobalBatch // the only minibatch; nil: there are several, or samples get more before that
}

// prepare begins to make samples of answers, on other cores: the device compares logits meanwhile.
func (l *learner) prepare(episodes []*runlog.Episode) (wait func() prepared) {
	done := make(chan prepared, 1)
	go func() {
		var p prepared
		if l.opened != nil {
			p.samples = l.opened.samples
		}
		p.known = len(p.samples)
		p.samples = append(p.samples, samplesOf(episodes[p.known:], l.updates)...)
		if !l.rl.Proximal && l.reference == nil && l.custom == nil && l.rl.Minibatches == 1 {
			batch := l.pack(p.samples)
			p.packed = &batch
		}
		done <- p
	}()
	return func() prepared { return <-done }
}

// update takes the optimizer steps of one step: rl.epochs times over rl.minibatches, which are complete groups in
// order.
func (l *learner) update(ctx context.Context, by prepared, res *learningResult) error {
	samples := by.samples
	for _, e := range res.episodes {
		res.answerTokens += len(e.IDs)
	}
	each := len(samples) / l.rl.Minibatches
	l.compare(samples[by.known:])
	if l.rl.Proximal {
		for _, pack := range l.pack(samples).Packs {
			b := trainer.NewBatch([][]trainer.Sample{pack}, l.packRows)
			b.Rows.LogProb = b.Rows.Old
			res.divergence.Add(b.Fresh())
		}
	}
	for range l.rl.Epochs {
		for m := range l.rl.Minibatches {
			from, to := m*each, (m+1)*each
			if err := l.minibatch(ctx, samples[from:to], by.packed, res.episodes[from:to], res); err != nil {
				return err
			}
		}
	}
	l.trainer.Finish() // answers are sampled by all weights
	return nil
}

// minibatch takes one optimizer step; packed nil: samples are to be packed.
func (l *learner) minibatch(ctx context.Context, samples []trainer.Sample, packed *trainer.GlobalBatch,
	episodes []*runlog.Episode, res *learningResult) error {
	if l.custom != nil {
		l.trainer.Finish()
		if err := l.differentiate(ctx, samples, episodes); err != nil {
			return err
		}
	}
	s := l.openStep(res)
	l.opened = nil
	if packed == nil {
		batch := l.pack(samples)
		packed = &batch
	}
	one := &s.update
	var err error
	if one.StepResult, err = s.feed.Close(packed.Scale, packed.Packs[s.put:]...); err != nil {
		return err
	}
	if err := one.Finite(); err != nil {
		return err
	}
	if l.custom != nil {
		one.Loss = l.customLoss
	}
	l.updates++
	res.trainRows += one.Tokens
	res.updates, res.earlyPacks = append(res.updates, *one), res.earlyPacks+s.put
	return nil
}

// compare computes the log-probabilities that the objective's ratios and KL are relative to: the trainer's own before
// the first update (rl.proximal), and the reference's.
func (l *learner) compare(samples []trainer.Sample) {
	if l.rl.Proximal {
		l.trainer.EachLogProb(l.packRows, samples, func(i int, logprob []float32) {
			samples[i].Old = logprob
		})
	}
	if l.reference != nil {
		trainer.EachLogProb(l.trainer.Rank, l.reference, l.packRows, samples, func(i int, logprob []float32) {
			samples[i].Reference = logprob
		})
	}
}

// pack lays a minibatch out in packs, with weights by rl.aggregate.
func (l *learner) pack(batch []trainer.Sample) trainer.GlobalBatch {
	return trainer.Pack(batch, 1, l.objective.Aggregate, l.maxTokens, l.packRows)
}
