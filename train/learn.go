package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/serve"
)

// learner is reinforcement learning: answers from the rollout engine on the weights as they are, rewards, advantages,
// an objective, updates.
type learner struct {
	*collector
	t          *trainer
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
	episodes    []*episode
	discarded   int     // episodes sampled and left out
	generate    float64 // seconds
	learn       float64
	newTokens   int // of answers that were learned from or left out
	drawn       int // tokens that the engine sampled meanwhile
	learnTokens int // rows of forward and backward
}

// update is one optimizer step of reinforcement learning.
type update struct {
	stepResult
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
	return res, appendEpisodes(l.out, append(groups, left...))
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
		d, err := l.engine.Diverges(ctx, l.t.r, l.t.m, e.Prompt, e.IDs, e.Temperature)
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
	var lessons []lesson
	for _, e := range res.episodes {
		lessons = append(lessons, e.lesson(l.updates))
		res.newTokens += len(e.IDs)
	}
	each := len(lessons) / l.s.Minibatches
	l.compare(lessons, res)
	for range l.s.Epochs {
		for m := range l.s.Minibatches {
			from, to := m*each, (m+1)*each
			if err := l.minibatch(ctx, lessons[from:to], res.episodes[from:to], res); err != nil {
				return err
			}
		}
	}
	return nil
}

// minibatch takes one optimizer step.
func (l *learner) minibatch(ctx context.Context, batch []lesson, episodes []*episode, res *learned) error {
	if l.custom != nil {
		if err := l.differentiate(ctx, batch, episodes); err != nil {
			return err
		}
	}
	var one update
	l.t.observe = func(packs [][]lesson, rows optim.Rows) {
		if len(res.updates) == 0 && !l.s.Proximal {
			res.divergence.Add(fresh(packs, rows))
		}
		if rows.Old != nil {
			rows.Rollout = rows.Old
		}
		one.drift.Add(rows)
	}
	one.stepResult = l.t.step(l.updates+1, l.pack(batch))
	if err := one.finite(); err != nil {
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
func (l *learner) compare(lessons []lesson, res *learned) {
	if l.s.Proximal {
		each(l.t.r, l.t.m, l.packRows, lessons, func(i int, logprob []float32) { lessons[i].old = logprob })
		for _, pack := range l.pack(lessons) {
			packs := [][]lesson{pack}
			_, rows, _ := assemble(packs)
			rows.LogProb = rows.Old
			res.divergence.Add(fresh(packs, rows))
		}
	}
	if l.reference != nil {
		each(l.t.r, l.reference, l.packRows, lessons, func(i int, logprob []float32) { lessons[i].reference = logprob })
	}
}

// fresh leaves out the tokens that older weights chose: what they differ by is not arithmetic.
func fresh(packs [][]lesson, rows optim.Rows) optim.Rows {
	rows.Targets = slices.Clone(rows.Targets)
	at := 0
	for _, pack := range packs {
		for _, le := range pack {
			for t := range le.stale {
				rows.Targets[at+t] = -1
			}
			at += len(le.IDs)
		}
	}
	return rows
}

// each gives visit the log-probabilities of the targets of every lesson i under a model.
func each(r *parallel.Rank, m *model.Model, packRows int, lessons []lesson, visit func(i int, logprob []float32)) {
	order := make([]int, len(lessons))
	for i := range order {
		order[i] = i
	}
	for _, p := range data.FirstFit(order, func(i int) int { return len(lessons[i].IDs) }, packRows) {
		var pack []lesson
		for _, i := range p.Samples {
			pack = append(pack, lessons[i])
		}
		rows := logprobs(r, m, [][]lesson{pack})
		for k, i := range p.Samples {
			visit(i, rows.LogProb[rows.Sequences[k]:rows.Sequences[k+1]])
		}
	}
}

// pack lays a minibatch out.
func (l *learner) pack(batch []lesson) [][]lesson {
	return pack(batch, 1, l.settings.Aggregate, l.maxTokens, l.packRows)
}

// finite reports numbers that are not.
func (r stepResult) finite() error {
	if math.IsNaN(r.Norm) || math.IsInf(r.Norm, 0) || math.IsNaN(r.Loss) {
		return fmt.Errorf("loss %g, gradient norm %g, %w", r.Loss, r.Norm, errNotFinite)
	}
	if math.IsNaN(r.IndexerNorm) || math.IsInf(r.IndexerNorm, 0) {
		return fmt.Errorf("indexer loss %g, gradient norm %g of the indexers, %w", r.IndexerLoss, r.IndexerNorm,
			errNotFinite)
	}
	return nil
}

var errNotFinite = errors.New("not finite")
