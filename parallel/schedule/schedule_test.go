package schedule

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the grids of testdata")

// Schedules are the grids that people have read.
func TestGrids(t *testing.T) {
	for _, name := range []string{OneF1B, ZeroBubble} {
		for _, ranks := range []int{2, 4, 8} {
			got, err := grid(New(name, ranks, 8), Usual)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", fmt.Sprintf("%s-%d.txt", name, ranks))
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
	}
}

// grid shows a schedule: ranks down, a unit of time in each column, and the bubble below.
func grid(s Schedule, c Costs) (string, error) {
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
			text.WriteString(strings.Repeat("  .", sp.From-at))
			text.WriteString(strings.Repeat(fmt.Sprintf(" %c%d", "FBW"[sp.Kind], sp.Micro), sp.To-sp.From))
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
			s, zero := New(OneF1B, ranks, micros), New(ZeroBubble, ranks, micros)
			checkTasks(t, s, Forward, Backward)
			checkTasks(t, zero, Forward, Backward, Weights)
			for rank := range ranks {
				if n := s.InFlight(rank); n != min(ranks-rank, micros) || s.InWaiting(rank) != 0 {
					t.Errorf("%d ranks, %d micro-batches: %d in flight on rank %d", ranks, micros, n, rank)
				}
				n, waiting := zero.InFlight(rank), zero.InWaiting(rank)
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

// checkBubble holds a schedule's bubble against that of a paper.
func checkBubble(t *testing.T, s Schedule, want float64) {
	t.Helper()
	if got := s.Bubble(Usual); math.Abs(got-want) > 1e-9 {
		t.Errorf("%s, %d ranks, %d micro-batches: bubble %v, want %v", s.Name, len(s.Ranks), s.Micros, got, want)
	}
}

// checkTasks holds that each micro-batch passes each rank once in tasks of these kinds, in order.
func checkTasks(t *testing.T, s Schedule, kinds ...Kind) {
	t.Helper()
	for rank, tasks := range s.Ranks {
		next := map[Kind]int{}
		for _, task := range tasks {
			if next[task.Kind] != task.Micro {
				t.Fatalf("%s, rank %d: %v comes where micro-batch %d is next", s.Name, rank, task, next[task.Kind])
			}
			next[task.Kind]++
		}
		for _, k := range kinds {
			if next[k] != s.Micros {
				t.Fatalf("%s, rank %d: %d of %d micro-batches in tasks of kind %d", s.Name, rank, next[k], s.Micros, k)
			}
		}
		if len(next) != len(kinds) {
			t.Fatalf("%s, rank %d: kinds of tasks %v", s.Name, rank, next)
		}
	}
}

// Ranks that wait for one another are an error.
func TestDeadlock(t *testing.T) {
	s := New(OneF1B, 2, 2)
	s.Ranks[1][0], s.Ranks[1][1] = s.Ranks[1][1], s.Ranks[1][0]
	if _, err := s.Simulate(Usual); err == nil {
		t.Error("a backward before its forward is carried out")
	}
}
