package train

import (
	"context"
	"fmt"

	"lockstep/data"
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
}

// collector keeps a rollout engine busy and hands out complete groups. All of it is in order and by number: what it
// hands out depends on the weights alone, and with stale answers on the engine's size too, but never on time.
type collector struct {
	*setup.Exam
	engine    *serve.Engine
	speak     func(ids []int32, finish serve.FinishReason) string
	request   serve.Request // what all have in common
	seed      uint64        // of the order of prompts
	prompts   int           // of a step
	size      int           // answers to a prompt
	staleness int           // updates that an answer may span
	perStep   int           // updates of a step
	dynamic   bool          // groups of one reward are left out
	mostAsked int           // prompts that a step may ask before it gives up

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

// next hands out the groups of one step, and those that were left out.
func (c *collector) next(ctx context.Context) (learned, left []*group, err error) {
	first := c.Asked
	for {
		for len(c.Groups) < c.prompts*(1+c.staleness/c.perStep) {
			if c.Asked-first >= c.mostAsked {
				return nil, nil, fmt.Errorf("%d prompts gave fewer than %d groups of answers with different rewards: "+
					"easier or harder prompts, a larger rl.group or rl.dynamic = false", c.mostAsked, c.prompts)
			}
			if err := c.ask(); err != nil {
				return nil, nil, err
			}
		}
		if c.complete() >= c.prompts && !c.overdue() {
			if err := c.judgeAll(ctx); err != nil {
				return nil, nil, err
			}
			left = append(left, c.leaveOut()...)
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
			c.place(d)
		}
	}
}

// ask puts the next prompt's group into the engine.
func (c *collector) ask() error {
	n := c.Exam.Len()
	if epoch := c.Asked / n; c.order.list == nil || c.order.epoch != epoch {
		c.order = collectorOrder{epoch, data.Order(c.seed, epoch, n)}
	}
	question := c.order.list[c.Asked%n]
	g := &group{Asked: c.Asked, Started: c.Version, Missing: c.size}
	for i := range c.size {
		q := c.request
		q.ID, q.Prompt = uint64(c.Asked)*uint64(c.size)+uint64(i), c.Exam.Prompt(question)
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

// place files a complete answer.
func (c *collector) place(d serve.Done) {
	for _, g := range c.Groups {
		if g.Asked != d.Index/c.size {
			continue
		}
		e := &g.Episodes[d.Index%c.size]
		e.IDs, e.LogProbs, e.Versions, e.Finish = d.Result.IDs, d.Result.LogProbs, d.Result.Versions, d.Result.Finish
		e.Text = c.speak(e.IDs, e.Finish)
		g.Missing--
		return
	}
	panic(fmt.Sprintf("train: an answer to a prompt that was not asked: %d", d.Index))
}

func (c *collector) complete() (n int) {
	for _, g := range c.Groups {
		if g.Missing == 0 {
			n++
		}
	}
	return n
}

// overdue tells whether an answer in the making would be too old for the step after this one.
func (c *collector) overdue() bool {
	for _, g := range c.Groups {
		if g.Missing > 0 && g.Started+c.staleness < c.Version+c.perStep {
			return true
		}
	}
	return false
}

// judgeAll asks for the rewards of all complete groups that have none.
func (c *collector) judgeAll(ctx context.Context) error {
	var asked []data.Answer
	var places []*runlog.Episode
	for _, g := range c.Groups {
		if g.Missing > 0 || g.Judged {
			continue
		}
		g.Judged = true
		for i := range g.Episodes {
			e := &g.Episodes[i]
			asked, places = append(asked, c.Exam.Answer(e.Question, e.Text)), append(places, e)
		}
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

// leaveOut takes out complete groups of one reward, which teach nothing, where that is asked for.
func (c *collector) leaveOut() (left []*group) {
	if !c.dynamic {
		return nil
	}
	keep := c.Groups[:0]
	for _, g := range c.Groups {
		if g.Judged && g.flat() {
			left = append(left, g)
		} else {
			keep = append(keep, g)
		}
	}
	c.Groups = keep
	return left
}

func (g *group) flat() bool {
	for i := range g.Episodes {
		if g.Episodes[i].Reward != g.Episodes[0].Reward {
			return false
		}
	}
	return true
}

// take hands out the first complete groups.
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

// pause leaves the engine without running sequences: they wait and are read again.
func (c *collector) pause() { c.engine.Refresh(c.Version) }

// updated says that the weights have changed.
func (c *collector) updated(version int) {
	c.Version = version
	c.engine.Refresh(version)
}

// state is for a checkpoint, after updated.
func (c *collector) state() collectorState {
	st := c.collectorState
	st.Pending = c.engine.Pending()
	return st
}

// resume goes on from a checkpoint.
func (c *collector) resume(st collectorState) {
	c.engine.Refresh(st.Version)
	c.engine.Resume(st.Pending)
	st.Pending = nil
	c.collectorState = st
}
