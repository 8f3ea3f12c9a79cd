package schedule

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the grids of testdata")

// Schedules are the grids that people have read.
func TestGrids(t *testing.T) {
	for name, chunks := range map[string]int{OneF1B: 1, ZeroBubble: 1, Interleaved: 2, Stream: 1} {
		for _, ranks := range []int{2, 4, 8} {
			checkGrid(t, fmt.Sprintf("%s-%d.txt", name, ranks), New(name, ranks, chunks, 1, 8))
		}
	}
	checkGrid(t, "zero-bubble-2-ahead-3.txt", New(ZeroBubble, 2, 1, 3, 8))
	checkGrid(t, "1f1b-4-ahead-2.txt", New(OneF1B, 4, 1, 2, 8))
	checkGrid(t, "stream-4-late.txt", NewStream(4, []int{0, 1, 2, 3, 12, 14, 28, 29}))
}

func checkGrid(t *testing.T, name string, s Schedule) {
	t.Helper()
	got, err := grid(s, Usual)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%swant\n%s", path, got, want)
	}
}

// grid shows a schedule: ranks down, a unit of time in each column, and the bubble below. A rank's second chunk has
// small letters.
func grid(s Schedule, c Costs) (string, error) {
	spans, err := s.Simulate(c)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %d ranks, %d micro-batches", s.Name, len(s.Ranks), s.Micros)
	if n := len(s.arrivals); n > 0 && s.arrivals[n-1] > 0 {
		fmt.Fprintf(&text, " that come at %d", s.arrivals)
	}
	text.WriteByte('\n')
	for rank, list := range spans {
		fmt.Fprintf(&text, "%d |", rank)
		at := 0
		for _, sp := range list {
			text.WriteString(strings.Repeat("  .", sp.From-at))
			letter := []string{"FBW", "fbw"}[sp.Chunk][sp.Kind]
			text.WriteString(strings.Repeat(fmt.Sprintf(" %c%d", letter, sp.Micro), sp.To-sp.From))
			at = sp.To
		}
		text.WriteByte('\n')
	}
	fmt.Fprintf(&text, "bubble %.1f%%\n", 100*s.Bubble(c))
	return text.String(), nil
}

// Any number of micro-batches passes any number of ranks, gradients in order, no more in memory than there are ranks
// below, or ranks in all where gradients of weights are put off, and with the bubble of the papers.
func TestSchedules(t *testing.T) {
	for ranks := 1; ranks <= 9; ranks++ {
		for micros := 1; micros <= 20; micros++ {
			s, zero := New(OneF1B, ranks, 1, 1, micros), New(ZeroBubble, ranks, 1, 1, micros)
			checkTasks(t, s, Forward, Backward)
			if stream := New(Stream, ranks, 1, 1, micros); !reflect.DeepEqual(stream.Ranks, s.Ranks) {
				t.Errorf("%d ranks, %d micro-batches at once: %v, want 1F1B", ranks, micros, stream.Ranks)
			}
			checkTasks(t, zero, Forward, Backward, Weights)
			for rank := range ranks {
				if n := s.InFlight(rank, 0); n != min(ranks-rank, micros) || s.InWaiting(rank) != 0 {
					t.Errorf("%d ranks, %d micro-batches: %d in flight on rank %d", ranks, micros, n, rank)
				}
				n, waiting := zero.InFlight(rank, 0), zero.InWaiting(rank)
				if n != min(ranks, micros) || waiting != min(rank+1, micros) {
					t.Errorf("%d ranks, %d micro-batches: %d in flight and %d put off on rank %d", ranks, micros, n,
						waiting, rank)
				}
			}
			wait := float64(ranks - 1)
			checkBubble(t, s, wait/(float64(micros)+wait))
			if micros >= ranks { // fewer do not reach where 1F1B has no bubble
				checkBubble(t, zero, wait/(3*float64(micros)+wait))
			}
		}
	}
}

// With more forwards ahead as many more micro-batches are in memory. A step of tasks that are all as long ends at the
// same time; one of moe-1b, by times in tenths of a millisecond that two H200s took, sooner.
func TestAhead(t *testing.T) {
	for name, uneven := range map[string]Costs{
		OneF1B:     {{Forward: 42, Backward: 98}, {Forward: 29, Backward: 84}},
		ZeroBubble: {{Forward: 36, Backward: 60, Weights: 25}, {Forward: 35, Backward: 75, Weights: 23}},
	} {
		for ranks := 2; ranks <= 8; ranks++ {
			micros := 4 * ranks
			before := New(name, ranks, 1, 1, micros)
			for ahead := 2; ahead <= 3; ahead++ {
				s := New(name, ranks, 1, ahead, micros)
				kinds := []Kind{Forward, Backward}
				if s.PutsOff() {
					kinds = append(kinds, Weights)
				}
				checkTasks(t, s, kinds...)
				for rank := range ranks {
					n, waiting := ahead*(ranks-1-rank)+1, 0
					if s.PutsOff() {
						n, waiting = ahead*(ranks-1)+1, ahead*rank+1
					}
					if got, put := s.InFlight(rank, 0), s.InWaiting(rank); got != n || put != waiting {
						t.Errorf("%s of %d ranks, %d ahead: %d in flight and %d put off on rank %d, want %d and %d",
							name, ranks, ahead, got, put, rank, n, waiting)
					}
				}
				if old, end := before.End(Usual), s.End(Usual); end != old {
					t.Errorf("%s of %d ranks, %d ahead: ends at %d, with one ahead at %d", name, ranks, ahead, end, old)
				}
				if old, end := before.End(uneven), s.End(uneven); ranks == 2 && end >= old {
					t.Errorf("%s, %d ahead, uneven ranks: ends at %d, with one ahead at %d", name, ahead, end, old)
				}
				before = s
			}
		}
	}
}

// However micro-batches come, each passes each rank once, gradients in order, within the memory of 1F1B; and one that
// comes when all before have passed meets nothing.
func TestStream(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		ranks, micros, gap := 1+rng.IntN(8), 1+rng.IntN(20), 1+rng.IntN(50)
		arrivals := make([]int, micros)
		for i := 1; i < micros; i++ {
			arrivals[i] = arrivals[i-1] + rng.IntN(gap)
		}
		s := NewStream(ranks, arrivals)
		checkTasks(t, s, Forward, Backward)
		for rank := range ranks {
			if n := s.InFlight(rank, 0); n > ranks-rank {
				t.Errorf("%d ranks, arrivals %d: %d in flight on rank %d", ranks, arrivals, n, rank)
			}
		}
		spans, err := s.Simulate(Usual)
		if err != nil {
			t.Fatal(err)
		}
		end := map[Task]int{} // of the first rank's tasks
		for _, sp := range spans[0] {
			end[sp.Task] = sp.To
		}
		for _, sp := range spans[ranks-1] {
			i := sp.Micro
			alone := i == 0 || end[Task{Kind: Backward, Micro: i - 1}] <= arrivals[i]
			if sp.Kind == Forward && alone && sp.To != arrivals[i]+ranks {
				t.Errorf("%d ranks, arrivals %d: results of %d at %d", ranks, arrivals, i, sp.To)
			}
		}
	}
}

// checkBubble holds a schedule's bubble against that of a paper.
func checkBubble(t *testing.T, s Schedule, want float64) {
	t.Helper()
	if got := s.Bubble(Usual); math.Abs(got-want) > 1e-9 {
		t.Errorf("%s, %d ranks, %d micro-batches: bubble %v, want %v", s.Name, len(s.Ranks), s.Micros, got, want)
	}
}

// Ranks with chunks wait as many times less as they have chunks, where groups of micro-batches are full; and as many
// micro-batches as two groups have keep as much as any number.
func TestInterleaved(t *testing.T) {
	for ranks := 2; ranks <= 9; ranks++ {
		for chunks := 2; chunks <= 4; chunks++ {
			for micros := 1; micros <= 20; micros++ {
				s, wait := New(Interleaved, ranks, chunks, 1, micros), float64(ranks-1)
				checkTasks(t, s, Forward, Backward)
				checkMessages(t, s)
				want := wait / (float64(chunks*micros) + wait)
				if micros%ranks == 0 {
					checkBubble(t, s, want)
				} else if got := s.Bubble(Usual); got < want {
					t.Errorf("%d ranks, %d chunks, %d micro-batches: bubble %v, want at least %v", ranks, chunks,
						micros, got, want)
				}
			}
			few, many := New(Interleaved, ranks, chunks, 1, 2*ranks), New(Interleaved, ranks, chunks, 1, 6*ranks-1)
			for rank := range ranks {
				for chunk := range chunks {
					if a, b := few.InFlight(rank, chunk), many.InFlight(rank, chunk); a != b {
						t.Errorf("rank %d of %d, chunk %d of %d: %d in flight, of more micro-batches %d", rank, ranks,
							chunk, chunks, a, b)
					}
				}
			}
		}
	}
}

// checkTasks holds that each micro-batch passes each chunk of each rank once in tasks of these kinds, in order.
func checkTasks(t *testing.T, s Schedule, kinds ...Kind) {
	t.Helper()
	for rank, tasks := range s.Ranks {
		next := map[Task]int{} // of a kind and chunk
		for _, task := range tasks {
			of := Task{Kind: task.Kind, Chunk: task.Chunk}
			if next[of] != task.Micro {
				t.Fatalf("%s, rank %d: %v comes where micro-batch %d is next", s.Name, rank, task, next[of])
			}
			next[of]++
		}
		for of, n := range next {
			if n != s.Micros || of.Chunk >= s.Chunks || !slices.Contains(kinds, of.Kind) {
				t.Fatalf("%s, rank %d: %d of %d micro-batches in tasks as %v", s.Name, rank, n, s.Micros, of)
			}
		}
		if len(next) != len(kinds)*s.Chunks {
			t.Fatalf("%s, rank %d: kinds of tasks %v", s.Name, rank, next)
		}
	}
}

// checkMessages holds that a rank receives from another in the order in which that one sends: of two ranks each sends
// the other rows and gradients.
func checkMessages(t *testing.T, s Schedule) {
	t.Helper()
	type pair struct{ from, to int }
	sent, received := map[pair][]work{}, map[pair][]work{}
	for rank, tasks := range s.Ranks {
		for _, task := range tasks {
			for _, w := range s.after(rank, task) {
				if w.rank != rank {
					received[pair{w.rank, rank}] = append(received[pair{w.rank, rank}], w)
				}
			}
		}
	}
	for p, list := range received {
		for _, task := range s.Ranks[p.from] {
			if w := (work{task, p.from}); slices.Contains(list, w) {
				sent[p] = append(sent[p], w)
			}
		}
		if !slices.Equal(sent[p], list) {
			t.Errorf("%d ranks, %d chunks, %d micro-batches: rank %d sends %v, rank %d receives %v", len(s.Ranks),
				s.Chunks, s.Micros, p.from, sent[p], p.to, list)
		}
	}
}

// Ranks that wait for one another are an error.
func TestDeadlock(t *testing.T) {
	s := New(OneF1B, 2, 1, 1, 2)
	s.Ranks[1][0], s.Ranks[1][1] = s.Ranks[1][1], s.Ranks[1][0]
	if _, err := s.Simulate(Usual); err == nil {
		t.Error("a backward before its forward is carried out")
	}
}
