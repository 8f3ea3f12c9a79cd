package schedule

import (
	"fmt"
	"strings"
)

// Costs are what tasks of one chunk take, in any unit of time.
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
				done[work{t.Kind, t.Micro, s.Stage(rank, t.Chunk)}] = to
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

// work is a task as all ranks name it.
type work struct {
	kind         Kind
	micro, stage int
}

// begins is when what a task reads is there; not ready: it has not been computed.
func (s Schedule) begins(rank int, t Task, done map[work]int) (at int, ready bool) {
	stage := s.Stage(rank, t.Chunk)
	var after []work
	switch {
	case t.Kind == Forward && stage > 0:
		after = append(after, work{Forward, t.Micro, stage - 1})
	case t.Kind == Backward:
		after = append(after, work{Forward, t.Micro, stage})
		if stage < s.Stages()-1 {
			after = append(after, work{Backward, t.Micro, stage + 1})
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

// Grid shows a schedule: ranks down, a unit of time in each column, and the bubble below.
func (s Schedule) Grid(c Costs) (string, error) {
	spans, err := s.Simulate(c)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %d ranks, %d micro-batches\n", s.Name, len(s.Ranks), s.Micros)
	for rank, list := range spans {
		fmt.Fprintf(&text, "%d |", rank)
		at := 0
		for _, sp := range list {
			text.WriteString(strings.Repeat(s.cell("."), sp.From-at))
			text.WriteString(strings.Repeat(s.cell(sp.name(s.Chunks)), sp.To-sp.From))
			at = sp.To
		}
		text.WriteByte('\n')
	}
	fmt.Fprintf(&text, "bubble %.1f%%\n", 100*s.Bubble(c))
	return text.String(), nil
}

// name is a task in a grid: F for forward, B for backward, the micro-batch, and the chunk where there are several.
func (t Task) name(chunks int) string {
	text := fmt.Sprintf("%c%d", "FB"[t.Kind], t.Micro)
	if chunks > 1 {
		text += string(rune('a' + t.Chunk))
	}
	return text
}

// cell is a column of a grid.
func (s Schedule) cell(text string) string {
	width := 3
	if s.Chunks > 1 {
		width = 4
	}
	return fmt.Sprintf("%*s", width, text)
}
