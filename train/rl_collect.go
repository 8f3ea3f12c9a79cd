package train

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"lockstep/data"
	"lockstep/model/checkpoint"
	"lockstep/serve"
	"lockstep/train/runlog"
	"lockstep/train/setup"
)

// group is the answers to one prompt.
type group struct {
	Asked    int              `json:"asked"`   // number of the prompt in the run, from 0
	Started  int              `json:"started"` // version of the weights when it was asked
	Missing  int              `json:"missing"` // answers that are not complete
	Judged   bool             `json:"judged"`
	Episodes []runlog.Episode `json:"episodes"`

	handed bool // see collector.early
}

// collector keeps rollout engines busy and hands out complete groups, in the order of their prompts. What it hands out
// depends on the weights alone; with rl.staleness on the engine's size too. It never depends on time.
type collector struct {
	*setup.JudgedQuestions
	engine         *serve.Replicas
	decode         func(ids []int32, finish serve.FinishReason) string
	request        serve.Request // what all have in common
	seed           uint64        // of the order of prompts
	prompts        int           // of a step
	groupSize      int           // answers to a prompt
	staleness      int           // updates that an answer may span
	updatesPerStep int           // updates of a step
	dynamic        bool          // groups of one reward are left out
	maxAsked       int           // prompts that a step may ask before it gives up
	exactKL        int           // answers of a step, the first asked in it, whose logits are kept
	// gets each group that a step learns from while others are not complete, in order, and the fewest rows that an
	// answer to come will have; nil: a step begins when it has all groups
	early    func(g *group, least int) error
	shortest int // prompt of all questions; 0: not looked for

	texts sync.WaitGroup // of answers, that are being decoded, and rewarded where that takes no other process

	order collectorOrder
	collectorState
}

// collectorState is what a checkpoint keeps.
type collectorState struct {
	Asked   int             `json:"asked"`   // prompts so far
	Version int             `json:"version"` // of the weights
	Groups  []*group        `json:"groups"`  // asked and not handed out, ascending
	Pending []serve.Pending `json:"pending,omitempty"`
}

// collectorOrder is the order of prompts in an epoch.
type collectorOrder struct {
	epoch int
	list  []int
}

// next returns the groups that a step learns from, and those that were left out.
func (c *collector) next(ctx context.Context) (learned, left []*group, err error) {
	first := c.Asked
	for {
		for len(c.Groups) < c.prompts*(1+c.staleness/c.updatesPerStep) {
			if c.Asked-first >= c.maxAsked {
				return nil, nil, fmt.Errorf("%d prompts gave fewer than %d groups of answers with different rewards: "+
					"use easier or harder prompts, raise rl.group or set rl.dynamic = false", c.maxAsked, c.prompts)
			}
			if err := c.ask(first); err != nil {
				return nil, nil, err
			}
		}
		if c.complete() >= c.prompts && !c.overdue() {
			if err := c.judgeAll(ctx); err != nil {
				return nil, nil, err
			}
			left = append(left, c.dropUniform()...)
			if c.complete() >= c.prompts {
				return c.take(), left, nil
			}
			continue
		}
		done, err := c.engine.Step(ctx)
		if err != nil {
			return nil, nil, err
		}
		for _, d := range done {
			if d.Result.Err != nil {
				return nil, nil, fmt.Errorf("answer to prompt %d: %w", d.Index/c.groupSize, d.Result.Err)
			}
		}
		c.store(done)
		if err := c.handEarly(ctx); err != nil {
			return nil, nil, err
		}
	}
}

// handEarly hands out the groups that are complete, up to the first that is not.
func (c *collector) handEarly(ctx context.Context) error {
	if c.early == nil {
		return nil
	}
	ready := slices.IndexFunc(c.Groups, func(g *group) bool { return g.Missing > 0 }) // below 0: the step begins anyway
	for i, g := range c.Groups[:max(ready, 0)] {
		if g.handed {
			continue
		}
		if !g.Judged {
			if err := c.judgeAll(ctx); err != nil {
				return err
			}
		}
		if g.handed = true; c.dynamic && g.uniform() {
			continue
		}
		if err := c.early(g, c.leastRows(i+1)); err != nil {
			return err
		}
	}
	return nil
}

// leastRows is the fewest rows that an answer of the groups from one on can have, or of those still to be asked.
func (c *collector) leastRows(from int) int {
	least := math.MaxInt
	if c.dynamic {
		if c.shortest == 0 {
			c.shortest = math.MaxInt
			for q := range c.JudgedQuestions.Len() {
				c.shortest = min(c.shortest, len(c.JudgedQuestions.Prompt(q)))
			}
		}
		least = c.shortest
	}
	for _, g := range c.Groups[from:] {
		for i := range g.Episodes {
			e := &g.Episodes[i]
			least = min(least, len(e.Prompt)+max(len(e.IDs), 1)-1)
		}
	}
	return least
}

// ask submits the requests of the next prompt's group to the engine. first is the first prompt of the step.
func (c *collector) ask(first int) error {
	n := c.JudgedQuestions.Len()
	if epoch := c.Asked / n; c.order.list == nil || c.order.epoch != epoch {
		c.order = collectorOrder{epoch, data.Order(c.seed, epoch, n)}
	}
	question := c.order.list[c.Asked%n]
	g := &group{Asked: c.Asked, Started: c.Version, Missing: c.groupSize}
	for i := range c.groupSize {
		q := c.request
		q.ID, q.Prompt = uint64(c.Asked)*uint64(c.groupSize)+uint64(i), c.JudgedQuestions.Prompt(question)
		q.KeepLogits = (c.Asked-first)*c.groupSize+i < c.exactKL
		if err := c.engine.Submit(int(q.ID), q); err != nil {
			return fmt.Errorf("question %d: %w", question, err)
		}
		g.Episodes = append(g.Episodes, runlog.Episode{Asked: c.Asked, Question: question, Sample: i, Prompt: q.Prompt,
			Temperature: q.Temperature})
	}
	c.Groups = append(c.Groups, g)
	c.Asked++
	return nil
}

// store puts finished answers into their groups, and begins to decode their texts and to reward them, on all cores: a
// device may wait, or sample the next ones. Whoever reads texts or rewards waits for them.
func (c *collector) store(done []serve.Done) {
	episodes := make([]*runlog.Episode, len(done))
	for i, d := range done {
		asked := d.Index / c.groupSize
		at, ok := slices.BinarySearchFunc(c.Groups, asked, func(g *group, asked int) int { return g.Asked - asked })
		if !ok {
			panic(fmt.Sprintf("train: an answer to an unknown prompt: %d", d.Index))
		}
		e := &c.Groups[at].Episodes[d.Index%c.groupSize]
		e.IDs, e.LogProbs, e.Versions, e.Finish = d.Result.IDs, d.Result.LogProbs, d.Result.Versions, d.Result.Finish
		c.Groups[at].Missing--
		episodes[i] = e
	}
	c.texts.Go(func() {
		checkpoint.InParallel(len(episodes), 1, func(from, to int) {
			for _, e := range episodes[from:to] {
				e.Text = c.decode(e.IDs, e.Finish)
				c.rewardLocally(e)
			}
		})
	})
}

// rewardLocally rewards an answer by itself, where this process computes rewards.
func (c *collector) rewardLocally(e *runlog.Episode) {
	if local, ok := c.Judge.(data.LocalRewarder); ok {
		e.Reward = local.Reward(c.JudgedQuestions.Answer(e.Question, e.Text))
	}
}

func (c *collector) complete() (n int) {
	for _, g := range c.Groups {
		if g.Missing == 0 {
			n++
		}
	}
	return n
}

// overdue tells whether an unfinished answer would be too stale for the step after this one.
func (c *collector) overdue() bool {
	for _, g := range c.Groups {
		if g.Missing > 0 && g.Started+c.staleness < c.Version+c.updatesPerStep {
			return true
		}
	}
	return false
}

// judgeAll asks for the rewards of all complete groups that have none, where answers have not had them by themselves.
func (c *collector) judgeAll(ctx context.Context) error {
	c.texts.Wait()
	_, local := c.Judge.(data.LocalRewarder)
	var asked []data.Answer
	var places []*runlog.Episode
	for _, g := range c.Groups {
		if g.Missing > 0 || g.Judged {
			continue
		}
		if g.Judged = true; local {
			continue
		}
		for i := range g.Episodes {
			e := &g.Episodes[i]
			asked, places = append(asked, c.JudgedQuestions.Answer(e.Question, e.Text)), append(places, e)
		}
	}
	if local {
		return context.Cause(ctx)
	}
	rewards, err := c.Judge.Rewards(ctx, asked)
	if err != nil {
		return err
	}
	for i, e := range places {
		e.Reward = rewards[i]
	}
	return nil
}

// dropUniform takes out complete groups whose answers all earn the same reward, where rl.dynamic asks for that: their
// advantages are 0.
func (c *collector) dropUniform() (left []*group) {
	if !c.dynamic {
		return nil
	}
	keep := c.Groups[:0]
	for _, g := range c.Groups {
		if g.Judged && g.uniform() {
			left = append(left, g)
		} else {
			keep = append(keep, g)
		}
	}
	c.Groups = keep
	return left
}

func (g *group) uniform() bool {
	for i := range g.Episodes {
		if g.Episodes[i].Reward != g.Episodes[0].Reward {
			return false
		}
	}
	return true
}

// take removes and returns the first complete groups of a step.
func (c *collector) take() (list []*group) {
	keep := c.Groups[:0]
	for _, g := range c.Groups {
		if g.Missing == 0 && len(list) < c.prompts {
			list = append(list, g)
		} else {
			keep = append(keep, g)
		}
	}
	c.Groups = keep
	return list
}

// pause moves all running sequences back to the waiting ones: their prompts and tokens are prefilled again.
func (c *collector) pause() { c.engine.Refresh(c.Version) }

// updated tells the engine that the weights have changed.
func (c *collector) updated(version int) {
	c.Version = version
	c.engine.Refresh(version)
}

// state returns what a checkpoint keeps. It is called after updated.
func (c *collector) state() collectorState {
	c.texts.Wait()
	st := c.collectorState
	st.Pending = c.engine.Pending()
	return st
}

// resume continues from the state of a checkpoint.
func (c *collector) resume(st collectorState) {
	c.engine.Refresh(st.Version)
	c.engine.Resume(st.Pending)
	st.Pending = nil
	c.restore(st)
}

// restore continues from the groups of a checkpoint, which may be older than rewards of single answers.
func (c *collector) restore(st collectorState) {
	c.collectorState = st
	for _, g := range st.Groups {
		for i := range g.Episodes {
			if e := &g.Episodes[i]; !g.Judged && len(e.IDs) > 0 {
				c.rewardLocally(e)
			}
		}
	}
}
