package schedule

import "fmt"

// Costs are what tasks take, in any unit of time.
type Costs struct{ Forward, Backward int }

// Usual has a backward that takes twice as long as a forward: gradients of inputs and of weights are a product each.
var Usual = Costs{Forward: 1, Backward: 2}

// Span is when a task is computed.
type Span struct {
	Task
	From, To int
}

// of is what a task takes.
func (c Costs) of(k Kind) int {
	if k == Forward {
		return c.Forward
	}
	return c.Backward
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
				to := from + c.of(t.Kind)
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

// begins is when what a task reads is there; not ready: it has not been computed.
func (s Schedule) begins(rank int, t Task, done map[work]int) (at int, ready bool) {
	var after []work
	switch {
	case t.Kind == Forward && rank > 0:
		after = append(after, work{t, rank - 1})
	case t.Kind == Backward:
		after = append(after, work{Task{Forward, t.Micro}, rank})
		if rank < len(s.Ranks)-1 {
			after = append(after, work{t, rank + 1})
		}
	}
	for _, w := range after {
		end, ok := done[w]
		if !ok {
			return 0, false
		}
		at = max(at, end)
	}
	return at, true
}

// Bubble is the share of the ranks' time in which they wait.
func (s Schedule) Bubble(c Costs) float64 {
	spans, err := s.Simulate(c)
	if err != nil {
		panic(err)
	}
	busy, end := 0, 0
	for _, list := range spans {
		for _, sp := range list {
			busy, end = busy+sp.To-sp.From, max(end, sp.To)
		}
	}
	return 1 - float64(busy)/float64(end*len(spans))
}
