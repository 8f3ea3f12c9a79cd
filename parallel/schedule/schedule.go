// Package schedule lists what each rank of a pipeline does in a step: data that the trainer executes, and that a
// simulation times. It imports nothing of this module.
package schedule

import "fmt"

// Names of schedules.
const (
	// one forward, one backward, with a flush at the end of a step (Narayanan et al., arXiv 2104.04473): few
	// micro-batches in memory
	OneF1B = "1f1b"
)

// Kind is what a task computes.
type Kind int

const (
	Forward  Kind = iota
	Backward      // gradients of the input and of the weights
)

// Task is a micro-batch that passes the blocks of a rank.
type Task struct {
	Kind  Kind
	Micro int // of the step, in the order of packs
}

// Schedule is the tasks of each rank, in order. A rank's backwards come in the order of micro-batches, as gradients are
// sums in that order.
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

// InFlight is the most micro-batches of which a rank keeps something for a backward at one time.
func (s Schedule) InFlight(rank int) (most int) {
	n := 0
	for _, t := range s.Ranks[rank] {
		switch t.Kind {
		case Forward:
			n++
			most = max(most, n)
		case Backward:
			n--
		}
	}
	return most
}
