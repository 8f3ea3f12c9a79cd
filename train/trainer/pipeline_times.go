package trainer

import (
	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
)

// TaskTime is when a rank of a pipeline began to wait for what a task reads, when that was there, and when the task
// ended: seconds by the clock of the rank's device.
type TaskTime struct {
	schedule.Task
	From, Ready, To float64
}

// TimeTasks makes the ranks of a pipeline note the times of tasks, until the function that it returns is called, when
// the devices have done them. That gives them by rank, in order, of all steps between.
func (t *Trainer) TimeTasks() (end func() [][]TaskTime) {
	ticks := make([][]taskTicks, t.Rank.Size)
	t.ticks = ticks
	return func() [][]TaskTime {
		t.ticks = nil
		times := make([][]TaskTime, len(ticks))
		for rank, list := range ticks {
			for _, k := range list {
				since := func(tick kernels.Tick) float64 { return tick.Since(list[0].from) }
				times[rank] = append(times[rank], TaskTime{k.Task, since(k.from), since(k.ready), since(k.to)})
			}
		}
		return times
	}
}

type taskTicks struct {
	schedule.Task
	from, ready, to kernels.Tick
}

// taskClock notes the times of one rank; nil: it does not.
type taskClock struct {
	device kernels.Transfers
	to     *[]taskTicks
	now    taskTicks
}

func (t *Trainer) clock(r *parallel.Rank) *taskClock {
	if t.ticks == nil {
		return nil
	}
	return &taskClock{device: r.Transfers, to: &t.ticks[r.ID]}
}

// begin is called before a task waits for anything.
func (c *taskClock) begin(task schedule.Task) {
	if c != nil {
		from := c.device.Tick()
		c.now = taskTicks{Task: task, from: from, ready: from}
	}
}

// arrived is called when what comes from another rank is waited for.
func (c *taskClock) arrived() {
	if c != nil {
		c.now.ready = c.device.Tick()
	}
}

// end is called behind a task.
func (c *taskClock) end() {
	if c != nil {
		c.now.to = c.device.Tick()
		*c.to = append(*c.to, c.now)
	}
}
