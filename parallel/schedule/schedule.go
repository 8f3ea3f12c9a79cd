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
	// put off to where the rank would wait (ZB-H1 of Qi et al., arXiv 2401.10241; with two ahead ZB-H2). Every rank has
	// as many micro-batches in memory as the first one has by 1F1B
	ZeroBubble = "zero-bubble"
	// 1F1B of ranks that have several chunks of blocks each, which micro-batches pass one after the other: ranks wait
	// for a chunk of the others, and not for all that they have (Narayanan et al., section 2.2)
	Interleaved = "interleaved"
	// what a rank does is not written before: see [Stage]. A step's micro-batches pass as they come; of those that are
	// there at once it makes 1F1B
	Stream = "stream"
)

// Kind is what a task computes.
type Kind int

const (
	Forward  Kind = iota
	Backward      // gradients of the input, and of the weights where no task is left for them
	Weights       // gradients of the weights
)

// Task is a micro-batch that passes blocks of a rank.
type Task struct {
	Kind  Kind
	Chunk int // of the rank's blocks
	Micro int // of the step, in the order of packs
}

// Schedule is the tasks of each rank, in order. The backwards of a chunk come in the order of micro-batches, as
// gradients are sums in that order, and so do the gradients of weights that are put off.
type Schedule struct {
	Name   string
	Chunks int // of each rank
	Micros int
	Ranks  [][]Task

	arrivals []int // when each micro-batch comes, in units of [Usual], ascending; nil: all are there
}

// New is the schedule of a name. Ranks have several chunks where it is [Interleaved]. By [OneF1B] and [ZeroBubble] a
// rank is so many forwards ahead of its first backward for each rank below it, and puts off as many gradients of
// weights for each rank above it: with more than one ahead, ranks whose tasks are not all as long wait less for each
// other, and have more micro-batches in memory.
func New(name string, ranks, chunks, ahead, micros int) Schedule {
	if name == Stream {
		return NewStream(ranks, make([]int, micros))
	}
	s := Schedule{Name: name, Chunks: chunks, Micros: micros}
	for rank := range ranks {
		switch name {
		case OneF1B:
			s.Ranks = append(s.Ranks, oneF1B(ahead*(ranks-1-rank), micros))
		case ZeroBubble:
			s.Ranks = append(s.Ranks, putOff(oneF1B(ahead*(ranks-1-rank), micros), ahead*rank))
		case Interleaved:
			s.Ranks = append(s.Ranks, interleaved(ranks, rank, chunks, micros))
		default:
			panic(fmt.Sprintf("schedule: there is no %s", name))
		}
	}
	return s
}

// oneF1B is the tasks of a rank that has so many forwards ahead; then a forward and a backward alternate.
func oneF1B(ahead, micros int) (tasks []Task) {
	ahead = min(ahead, micros)
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

// interleaved is the tasks of a rank with chunks: groups of as many micro-batches as there are ranks pass all chunks.
// The rank has as many forwards ahead as it takes until a backward reaches it; then a forward and a backward alternate.
// What is not of a step, in a last group that is not full, is left out.
func interleaved(ranks, rank, chunks, micros int) (tasks []Task) {
	all := (micros + ranks - 1) / ranks * ranks * chunks
	task := func(kind Kind, i int) {
		t := Task{Kind: kind, Chunk: i / ranks % chunks, Micro: i/(ranks*chunks)*ranks + i%ranks}
		if kind == Backward {
			t.Chunk = chunks - 1 - t.Chunk
		}
		if t.Micro < micros {
			tasks = append(tasks, t)
		}
	}
	ahead := min(2*(ranks-1-rank)+(chunks-1)*ranks, all)
	for i := range all + ahead {
		if i < all {
			task(Forward, i)
		}
		if i >= ahead {
			task(Backward, i-ahead)
		}
	}
	return tasks
}

// putOff leaves a task for the weights of each backward: that of the backward before by so many follows a backward, and
// the last ones come at the end. So a rank begins as many backwards sooner, for which those before it wait.
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

// LastBackward is the place of the last backward among a rank's tasks; below 0: it has none.
func (s Schedule) LastBackward(rank int) int {
	at := len(s.Ranks[rank]) - 1
	for at >= 0 && s.Ranks[rank][at].Kind != Backward {
		at--
	}
	return at
}

// InFlight is the most micro-batches of which a chunk of a rank keeps something for gradients at one time.
func (s Schedule) InFlight(rank, chunk int) int {
	if s.PutsOff() {
		return s.most(rank, chunk, Forward, Weights)
	}
	return s.most(rank, chunk, Forward, Backward)
}

// InWaiting is the most micro-batches whose gradients of weights a rank has put off at one time.
func (s Schedule) InWaiting(rank int) int {
	if !s.PutsOff() {
		return 0
	}
	return s.most(rank, 0, Backward, Weights)
}

// most is of how many micro-batches one task of a chunk has been computed at one time, and the other not.
func (s Schedule) most(rank, chunk int, one, other Kind) (most int) {
	n := 0
	for _, t := range s.Ranks[rank] {
		switch t {
		case Task{one, chunk, t.Micro}:
			n++
			most = max(most, n)
		case Task{other, chunk, t.Micro}:
			n--
		}
	}
	return most
}
