// Package schedule lists what each rank of a pipeline does in a step: data that the trainer executes, and that a
// simulation times. It imports nothing of this module.
package schedule

import "fmt"

// Names of schedules.
const (
	// one forward, one backward, with a flush at the end of a step (Narayanan et al., arXiv 2104.04473): few
	// micro-batches in memory
	OneF1B = "1f1b"
	// 1F1B whose backwards are parted: the gradient of the input goes to the next rank at once, those of weights are
	// put off to where the rank would wait (ZB-H1 of Qi et al., arXiv 2401.10241). Every rank has as many micro-batches
	// in memory as the first one has by 1F1B
	ZeroBubble = "zero-bubble"
)

// Kind is what a task computes.
type Kind int

const (
	Forward  Kind = iota
	Backward      // gradients of the input, and of the weights where no task is left for them
	Weights       // gradients of the weights
)

// Task is a micro-batch that passes the blocks of a rank.
type Task struct {
	Kind  Kind
	Micro int // of the step, in the order of packs
}

// Schedule is the tasks of each rank, in order. A rank's backwards come in the order of micro-batches, as gradients are
// sums in that order, and so do the gradients of weights that are put off.
type Schedule struct {
	Name   string
	Micros int
	Ranks  [][]Task
}

// New is the schedule of a name.
func New(name string, ranks, micros int) Schedule {
	s := Schedule{Name: name, Micros: micros}
	for rank := range ranks {
		switch name {
		case OneF1B:
			s.Ranks = append(s.Ranks, oneF1B(ranks-1-rank, micros))
		case ZeroBubble:
			s.Ranks = append(s.Ranks, putOff(oneF1B(ranks-1-rank, micros), rank))
		default:
			panic(fmt.Sprintf("schedule: there is no %s", name))
		}
	}
	return s
}

// oneF1B is the tasks of a rank that has so many below it: as many forwards ahead, then a forward and a backward
// alternate.
func oneF1B(below, micros int) (tasks []Task) {
	ahead := min(below, micros)
	for i := range micros + ahead {
		if i < micros {
			tasks = append(tasks, Task{Kind: Forward, Micro: i})
		}
		if i >= ahead {
			tasks = append(tasks, Task{Kind: Backward, Micro: i - ahead})
		}
	}
	return tasks
}

// putOff leaves a task for the weights of each backward: that of the backward before by so many follows a backward, and
// the last ones come at the end. So a rank begins as many backwards sooner as there are ranks before it, which wait.
func putOff(tasks []Task, by int) (parted []Task) {
	var left []Task
	for _, t := range tasks {
		if parted = append(parted, t); t.Kind != Backward {
			continue
		}
		if left = append(left, Task{Kind: Weights, Micro: t.Micro}); len(left) > by {
			parted, left = append(parted, left[0]), left[1:]
		}
	}
	return append(parted, left...)
}

// PutsOff tells whether backwards leave the gradients of weights to tasks of their own.
func (s Schedule) PutsOff() bool { return s.Name == ZeroBubble }

// InFlight is the most micro-batches of which a rank keeps something for gradients at one time.
func (s Schedule) InFlight(rank int) int {
	if s.PutsOff() {
		return s.most(rank, Forward, Weights)
	}
	return s.most(rank, Forward, Backward)
}

// InWaiting is the most micro-batches whose gradients of weights a rank has put off at one time.
func (s Schedule) InWaiting(rank int) int {
	if !s.PutsOff() {
		return 0
	}
	return s.most(rank, Backward, Weights)
}

// most is of how many micro-batches one task has been computed at one time, and the other not.
func (s Schedule) most(rank int, one, other Kind) (most int) {
	n := 0
	for _, t := range s.Ranks[rank] {
		switch t.Kind {
		case one:
			n++
			most = max(most, n)
		case other:
			n--
		}
	}
	return most
}
