package schedule

import "fmt"

// Cost is what tasks of some blocks take, in any unit of time. Backward is the gradient of the input alone, Update what
// comes behind all micro-batches.
type Cost struct{ Forward, Backward, Weights, Update int }

// Costs are those of all stages, first a chunk of each rank; or one that all have.
type Costs []Cost

// Usual has a product for each: a backward with both gradients takes twice as long as a forward.
var Usual = Costs{{Forward: 1, Backward: 1, Weights: 1}}

// Span is when a task is computed.
type Span struct {
	Task
	From, To int
}

// of is the cost of a chunk of a rank.
func (c Costs) of(s Schedule, rank, chunk int) Cost { return c[(chunk*len(s.Ranks)+rank)%len(c)] }

// cost is what a task of a rank takes.
func (s Schedule) cost(rank int, t Task, costs Costs) int {
	switch c := costs.of(s, rank, t.Chunk); {
	case t.Kind == Forward:
		return c.Forward
	case t.Kind == Weights:
		return c.Weights
	case s.PutsOff():
		return c.Backward
	default:
		return c.Backward + c.Weights
	}
}

// Simulate carries a schedule out: a rank begins a task when it has ended the one before, and its rows, or their
// gradients, have been computed by the rank that sends them. Sending takes no time. A schedule in which all ranks wait
// is an error.
func (s Schedule) Simulate(c Costs) ([][]Span, error) {
	spans, done := make([][]Span, len(s.Ranks)), map[work]int{}
	for {
		moved, left := false, 0
		for rank, tasks := range s.Ranks {
			for _, t := range tasks[len(spans[rank]):] {
				from, ready := s.begins(rank, t, done)
				if !ready {
					left++
					break
				}
				if n := len(spans[rank]); n > 0 {
					from = max(from, spans[rank][n-1].To)
				}
				to := from + s.cost(rank, t, c)
				spans[rank] = append(spans[rank], Span{t, from, to})
				done[work{t, rank}] = to
				moved = true
			}
		}
		switch {
		case left == 0:
			return spans, nil
		case !moved:
			return nil, fmt.Errorf("%s of %d ranks and %d micro-batches: all ranks wait", s.Name, len(s.Ranks),
				s.Micros)
		}
	}
}

// work is a task of a rank.
type work struct {
	Task
	rank int
}

// after is the work whose results a task reads.
func (s Schedule) after(rank int, t Task) (after []work) {
	switch last := len(s.Ranks) - 1; t.Kind {
	case Forward:
		if rank > 0 {
			after = append(after, work{t, rank - 1})
		} else if t.Chunk > 0 {
			after = append(after, work{Task{Forward, t.Chunk - 1, t.Micro}, last})
		}
	case Weights:
		after = append(after, work{Task{Backward, t.Chunk, t.Micro}, rank})
	case Backward:
		after = append(after, work{Task{Forward, t.Chunk, t.Micro}, rank})
		if rank < last {
			after = append(after, work{t, rank + 1})
		} else if t.Chunk < s.Chunks-1 {
			after = append(after, work{Task{Backward, t.Chunk + 1, t.Micro}, 0})
		}
	}
	return after
}

// begins is when what a task reads is there; not ready: it has not been computed.
func (s Schedule) begins(rank int, t Task, done map[work]int) (at int, ready bool) {
	if rank == 0 && t.Kind == Forward && t.Chunk == 0 && s.arrivals != nil {
		at = s.arrivals[t.Micro]
	}
	for _, w := range s.after(rank, t) {
		end, ok := done[w]
		if !ok {
			return 0, false
		}
		at = max(at, end)
	}
	return at, true
}

// Times simulates a step: how long each rank computes micro-batches, and when the last one has ended.
func (s Schedule) Times(c Costs) (busy []int, end int) {
	spans, err := s.Simulate(c)
	if err != nil {
		panic(err)
	}
	for _, list := range spans {
		sum := 0
		for _, sp := range list {
			sum, end = sum+sp.To-sp.From, max(end, sp.To)
		}
		busy = append(busy, sum)
	}
	return busy, end
}

// Bubble is the share of the ranks' time in which they wait.
func (s Schedule) Bubble(c Costs) float64 {
	busy, end := s.Times(c)
	all := 0
	for _, n := range busy {
		all += n
	}
	return 1 - float64(all)/float64(end*len(busy))
}

// End is when the longest update has ended, which begins when all ranks have computed their micro-batches: it takes the
// norm of all gradients.
func (s Schedule) End(c Costs) int {
	_, end := s.Times(c)
	longest := 0
	for rank := range s.Ranks {
		update := 0
		for chunk := range s.Chunks {
			update += c.of(s, rank, chunk).Update
		}
		longest = max(longest, update)
	}
	return end + longest
}
