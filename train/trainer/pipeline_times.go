package trainer

import (
	"math"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
)

// RankTimes is when a rank computed what, in seconds by the clock of its device.
type RankTimes struct {
	Steps []StepTime
	Tasks []TaskTime // of a pipeline, of all steps
}

// StepTime is when a rank began with the first micro-batch of a step, when it had computed the last, and when it had
// updated its weights.
type StepTime struct{ From, Computed, To float64 }

// TaskTime is when a rank of a pipeline began to wait for what a task reads, when that was there, and when the task
// ended.
type TaskTime struct {
	schedule.Task
	From, Ready, To float64
}

// MeanStep is the seconds of one of so many steps, the mean: of micro-batches, on the device that takes longest for
// them, and of the update behind them, on the device that waits for no other.
func MeanStep(ranks []RankTimes, steps int) (micros, update float64) {
	update = math.Inf(1)
	for _, of := range ranks {
		computed, updated := 0.0, 0.0
		for _, st := range of.Steps {
			computed, updated = computed+(st.Computed-st.From), updated+(st.To-st.Computed)
		}
		micros, update = max(micros, computed/float64(steps)), min(update, updated/float64(steps))
	}
	return micros, update
}

// TimeSteps makes the ranks note the times of steps, and those of a pipeline of tasks, until the function that it
// returns is called, when the devices have done them. That gives them by rank, in order, of all steps between.
func (t *Trainer) TimeSteps() (end func() []RankTimes) {
	ticks := make([]rankTicks, t.Rank.Size)
	t.ticks = ticks
	return func() []RankTimes {
		t.ticks = nil
		times := make([]RankTimes, len(ticks))
		for rank, of := range ticks {
			since := func(tick kernels.Tick) float64 { return tick.Since(of.steps[0].from) }
			to := &times[rank]
			for _, k := range of.steps {
				to.Steps = append(to.Steps, StepTime{since(k.from), since(k.computed), since(k.to)})
			}
			for _, k := range of.tasks {
				to.Tasks = append(to.Tasks, TaskTime{k.Task, since(k.from), since(k.ready), since(k.to)})
			}
		}
		return times
	}
}

// rankTicks are what one rank has noted.
type rankTicks struct {
	steps []stepTicks
	tasks []taskTicks
	begun bool // the next step has
	from  kernels.Tick
}

type stepTicks struct{ from, computed, to kernels.Tick }

type taskTicks struct {
	schedule.Task
	from, ready, to kernels.Tick
}

// stepClock notes the times of one rank; nil: it does not.
type stepClock struct {
	device kernels.Transfers
	ticks  *rankTicks
	task   taskTicks // at hand
}

func (t *Trainer) clock(r *parallel.Rank) *stepClock {
	if t.ticks == nil || r.Transfers == nil {
		return nil
	}
	return &stepClock{device: r.Transfers, ticks: &t.ticks[r.ID]}
}

// begin is called before the first micro-batch of a step is enqueued, and before others.
func (c *stepClock) begin() {
	if c != nil && !c.ticks.begun {
		c.ticks.begun, c.ticks.from = true, c.device.Tick()
	}
}

// update is called between the last micro-batch of a step and its update. It returns what is called behind that.
func (c *stepClock) update() (end func()) {
	if c == nil {
		return func() {}
	}
	c.begin()
	computed := c.device.Tick()
	return func() {
		c.ticks.steps = append(c.ticks.steps, stepTicks{c.ticks.from, computed, c.device.Tick()})
		c.ticks.begun = false
	}
}

// beginTask is called before a task waits for anything.
func (c *stepClock) beginTask(task schedule.Task) {
	if c != nil {
		c.begin()
		from := c.device.Tick()
		c.task = taskTicks{Task: task, from: from, ready: from}
	}
}

// arrived is called when what comes from another rank is waited for.
func (c *stepClock) arrived() {
	if c != nil {
		c.task.ready = c.device.Tick()
	}
}

// endTask is called behind a task.
func (c *stepClock) endTask() {
	if c != nil {
		c.task.to = c.device.Tick()
		c.ticks.tasks = append(c.ticks.tasks, c.task)
	}
}
