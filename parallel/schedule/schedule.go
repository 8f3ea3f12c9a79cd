// Package schedule lists what each rank of a pipeline does in a step: data that the trainer executes, and that a
// simulation prints as a grid of ranks and time. It imports nothing of this module.
package schedule

import "fmt"

// Names of schedules.
const (
	OneF1B = "1f1b" // one forward, one backward (Narayanan et al., arXiv 1806.03377): few micro-batches in memory
)

// Kind is what a task computes.
type Kind int

const (
	Forward  Kind = iota
	Backward      // gradients of the input and of the weights
)

// Task is a micro-batch that passes one chunk of the blocks of a rank.
type Task struct {
	Kind  Kind
	Micro int // of the step, in the order of packs
	Chunk int // of the rank; see [Schedule.Stage]
}

// Schedule is the tasks of each rank, in order. Backwards of a chunk come in the order of micro-batches, as gradients
// are sums in that order.
type Schedule struct {
	Name   string
	Micros int
	Chunks int // of each rank
	Ranks  [][]Task
}

// New is the schedule of a name.
func New(name string, ranks, micros int) Schedule {
	s := Schedule{Name: name, Micros: micros, Chunks: 1}
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

// Stages is how many parts the blocks of the model are cut into.
func (s Schedule) Stages() int { return len(s.Ranks) * s.Chunks }

// Stage is the part of the model that a chunk of a rank is.
func (s Schedule) Stage(rank, chunk int) int { return chunk*len(s.Ranks) + rank }

// InFlight is the most micro-batches of which a rank keeps something for a backward at one time, each chunk counted.
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
