package schedule

// Stage is a rank of a pipeline whose micro-batches come while it computes. It takes the oldest backward that it may,
// else the next forward, within its memory: so gradients, and with them memory, are never put off for what is new.
type Stage struct {
	Memory    int // micro-batches of which it may keep something at one time
	Forwards  int // that it has taken so far
	Backwards int
}

// NewStage is that of a rank: by its memory it runs as many forwards ahead as 1F1B does.
func NewStage(rank, ranks int) Stage { return Stage{Memory: ranks - rank} }

// Next is the task that the rank takes when the rows of so many micro-batches have come to it, and the gradients of so
// many. Not ok: there is none.
func (s *Stage) Next(rows, gradients int) (t Task, ok bool) {
	switch {
	case s.Backwards < min(gradients, s.Forwards):
		t = Task{Kind: Backward, Micro: s.Backwards}
		s.Backwards++
	case s.Forwards < rows && s.Forwards-s.Backwards < s.Memory:
		t = Task{Kind: Forward, Micro: s.Forwards}
		s.Forwards++
	default:
		return t, false
	}
	return t, true
}

// NewStream is what the ranks of a pipeline do when micro-batches come at these times, ascending, in units of [Usual].
func NewStream(ranks int, arrivals []int) Schedule {
	s := Schedule{Name: Stream, Chunks: 1, Micros: len(arrivals), Ranks: make([][]Task, ranks), arrivals: arrivals}
	stages, free, done := make([]Stage, ranks), make([]int, ranks), map[work]int{}
	for rank := range stages {
		stages[rank] = NewStage(rank, ranks)
	}
	for at, left := 0, 2*ranks*len(arrivals); left > 0; at++ {
		for rank := range stages {
			st := &stages[rank]
			if free[rank] > at {
				continue
			}
			rows := s.come(rank, Forward, st.Forwards, at, done)
			t, ok := st.Next(rows, s.come(rank, Backward, st.Backwards, at, done))
			if !ok {
				continue
			}
			left--
			s.Ranks[rank] = append(s.Ranks[rank], t)
			free[rank] = at + s.cost(rank, t, Usual)
			done[work{t, rank}] = free[rank]
		}
	}
	return s
}

// come is for how many micro-batches, so far, a task's input is there at a time, from the first that a rank has not
// taken on.
func (s Schedule) come(rank int, kind Kind, first, at int, done map[work]int) int {
	for first < s.Micros {
		from, ready := s.begins(rank, Task{Kind: kind, Micro: first}, done)
		if !ready || from > at {
			break
		}
		first++
	}
	return first
}
