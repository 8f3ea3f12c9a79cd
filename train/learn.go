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

// learner is reinforcement learning: answers from the rollout engine on the weights as they are, rewards, advantages,
// an objective, updates.
type learner struct {
	*collector
	t          *trainer.Trainer
	s          configs.RL
	settings   optim.Settings // of the objective, complete
	out        string
	packRows   int
	maxTokens  int
	rank       *parallel.Rank // that samples, with its model: the trainer's own, or a copy with numerics of its own
	model      *model.Model
	sync       func() error  // copies the trained weights to the rollout's; nil: they are the same
	custom     *data.Program // whose loss it is; nil: the objective's
	reference  *model.Model  // nil: no KL to it
	customLoss float64       // of the last minibatch
	updates    int           // optimizer steps of the stage
	asOf       int           // updates before the last step
}

// learned is what one step did.
type learned struct {
	updates     []update         // its optimizer steps, in order
	divergence  optim.Divergence // rollout against trainer, before the first update
	exact       serve.Divergence
	episodes    []*runlog.Episode
	discarded   int     // episodes sampled and left out
	generate    float64 // seconds
	learn       float64
	newTokens   int // of answers that were learned from or left out
	drawn       int // tokens that the engine sampled meanwhile
	learnTokens int // rows of forward and backward
}

// update is one optimizer step of reinforcement learning.
type update struct {
	trainer.StepResult
	// drift is the policy before the update against the one that its ratios are to: the rollout or, with rl.proximal,
	// the trainer's own before the step's first update.
	drift optim.Divergence
}

// step samples, judges and learns. step counts from the beginning of the run.
func (l *learner) step(ctx context.Context, step int) (res learned, err error) {
	began := time.Now()
	drawn := l.engine.Drawn
	groups, left, err := l.next(ctx)
	if err != nil {
		return res, err
	}
	l.pause()
	l.asOf = l.updates
	res.generate, res.drawn = time.Since(began).Seconds(), l.engine.Drawn-drawn
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
			res.newTokens += len(g.Episodes[i].IDs)
		}
	}
	if err := l.exactly(ctx, &res); err != nil {
		return res, err
	}
	began = time.Now()
	if err := l.update(ctx, &res); err != nil {
		return res, err
	}
	if l.sync != nil {
		if err := l.sync(); err != nil {
			return res, err
		}
	}
	l.updated(l.updates)
	res.learn = time.Since(began).Seconds()
	return res, runlog.AppendEpisodes(l.out, slices.Concat(episodesOf(groups), episodesOf(left)))
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

// advantages compares the rewards of each group, those of answers that run too long lowered first.
func (l *learner) advantages(groups []*group) {
	var rewards []float64
	for _, g := range groups {
		for i := range g.Episodes {
			e := &g.Episodes[i]
			reward := e.Reward
			if l.s.OverlongRows > 0 {
				reward += data.Overlong(len(e.IDs), l.maxTokens, l.s.OverlongRows)
			}
			rewards = append(rewards, reward)
		}
	}
	values := optim.GroupAdvantages(l.settings.Advantage, rewards, l.size)
	for _, g := range groups {
		for i := range g.Episodes {
			g.Episodes[i].Advantage, values = values[0], values[1:]
		}
	}
}

// exactly sums the KL of some answers over the whole vocabulary.
func (l *learner) exactly(ctx context.Context, res *learned) error {
	n := min(l.s.ExactKL, len(res.episodes))
	for _, e := range res.episodes[:n] {
		d, err := l.engine.Diverges(ctx, l.t.Rank, l.t.Model, e.Prompt, e.IDs, e.Temperature)
		if err != nil {
			return err
		}
		res.exact.KL += d.KL / float64(n)
		res.exact.Logits += d.Logits
		res.exact.Differ += d.Differ
	}
	return nil
}

// update takes the optimizer steps of one step: epochs times over the minibatches, which are whole groups in order.
func (l *learner) update(ctx context.Context, res *learned) error {
	var samples []trainer.Sample
	for _, e := range res.episodes {
		samples = append(samples, sampleOf(e, l.updates))
		res.newTokens += len(e.IDs)
	}
	each := len(samples) / l.s.Minibatches
	l.compare(samples, res)
	for range l.s.Epochs {
		for m := range l.s.Minibatches {
			from, to := m*each, (m+1)*each
			if err := l.minibatch(ctx, samples[from:to], res.episodes[from:to], res); err != nil {
				return err
			}
		}
	}
	return nil
}

// minibatch takes one optimizer step.
func (l *learner) minibatch(ctx context.Context, samples []trainer.Sample, episodes []*runlog.Episode,
	res *learned) error {
	if l.custom != nil {
		if err := l.differentiate(ctx, samples, episodes); err != nil {
			return err
		}
	}
	var one update
	l.t.Observe = func(b *trainer.Batch) {
		if len(res.updates) == 0 && !l.s.Proximal {
			res.divergence.Add(b.Fresh())
		}
		rows := b.Rows
		if rows.Old != nil {
			rows.Rollout = rows.Old
		}
		one.drift.Add(rows)
	}
	one.StepResult = l.t.Step(l.updates+1, l.pack(samples))
	if err := one.Finite(); err != nil {
		return err
	}
	if l.custom != nil {
		one.Loss = l.customLoss
	}
	l.updates++
	res.learnTokens += one.Tokens
	res.updates = append(res.updates, one)
	return nil
}

// compare fills in what the objective holds new log-probabilities against: the trainer's own before the first update,
// and the reference's.
func (l *learner) compare(samples []trainer.Sample, res *learned) {
	if l.s.Proximal {
		trainer.EachLogProb(l.t.Rank, l.t.Model, l.packRows, samples, func(i int, logprob []float32) {
			samples[i].Old = logprob
		})
		for _, pack := range l.pack(samples) {
			b := trainer.NewBatch([][]trainer.Sample{pack})
			b.Rows.LogProb = b.Rows.Old
			res.divergence.Add(b.Fresh())
		}
	}
	if l.reference != nil {
		trainer.EachLogProb(l.t.Rank, l.reference, l.packRows, samples, func(i int, logprob []float32) {
			samples[i].Reference = logprob
		})
	}
}

// pack lays a minibatch out.
func (l *learner) pack(batch []trainer.Sample) [][]trainer.Sample {
	return trainer.Pack(batch, 1, l.settings.Aggregate, l.maxTokens, l.packRows)
}
