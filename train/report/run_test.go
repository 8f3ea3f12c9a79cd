package report

import (
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/train/runlog"
)

// Steps of reinforcement learning are counted from the end of the warm start, whose last evaluation is their step 0.
func TestRecordsOfStages(t *testing.T) {
	p := &runData{Shape: &configs.Shape{RL: configs.RL{Objective: "grpo"}, WarmStart: configs.WarmStart{Steps: 3}}}
	for step := 1; step <= 5; step++ {
		p.Log = append(p.Log, runlog.Record{Step: step, Loss: runlog.Num(float64(step)),
			EvalLoss: runlog.Num(10 * float64(step))})
	}
	steps := func(list []runlog.Record) (all []int) {
		for _, r := range list {
			all = append(all, r.Step)
		}
		return all
	}
	if got := steps(p.records(supervised)); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("the warm start has steps %v", got)
	}
	learned := p.records(reinforced)
	if got := steps(learned); !slices.Equal(got, []int{0, 1, 2}) || learned[0].Loss != nil ||
		*learned[0].EvalLoss != 30 || *learned[1].Loss != 4 {
		t.Errorf("reinforcement learning has steps %v of %+v", got, learned)
	}
}

// A curve of several runs is the mean of those that have a step.
func TestPointsOfRuns(t *testing.T) {
	a := &series{}
	for _, values := range [][]float64{{1, 5}, {3}} {
		p := &runData{Shape: &configs.Shape{}}
		for i, v := range values {
			p.Log = append(p.Log, runlog.Record{Step: i + 1, Loss: runlog.Num(v)})
		}
		a.Runs = append(a.Runs, p)
	}
	want := []point{{X: 1, Y: 2, Low: 1, High: 3}, {X: 2, Y: 5, Low: 5, High: 5}}
	if got := a.points(supervised, func(r runlog.Record) *runlog.Number { return r.Loss }); !slices.Equal(got, want) {
		t.Errorf("points %v, want %v", got, want)
	}
}

// Runs that differ in any seed share a curve; tokens that differ are not told as equal, though their KL rounds to 0.
func TestWhatCountsAsEqual(t *testing.T) {
	for key, want := range map[string]bool{
		"run.seed": true, "rollout.seed": true, "data.countdown.seed": true, "model.init_seed": true, "run.name": true,
		"run.out":   true,
		"run.steps": false, "data.path": false,
	} {
		if got := ignored(key); got != want {
			t.Errorf("%s: ignored %t, want %t", key, got, want)
		}
	}
	for _, c := range []struct {
		t    tally
		want bool
	}{{tally{1, 7, 0, 0}, true}, {tally{1, 7, 1, 0}, false}, {tally{1, 7, 0, 1e-9}, false},
		{tally{1, 0, 0, 0}, false}} {
		if got := c.t.exact(); got != c.want {
			t.Errorf("%+v: exact %t, want %t", c.t, got, c.want)
		}
	}
}

// The answers of a report are those that the run learned from last.
func TestLastAnswers(t *testing.T) {
	f := rlRun(1, 0)
	old := *f.episodes[0]
	old.Step, old.Text = 39, "an old answer"
	f.episodes = append([]*runlog.Episode{&old}, f.episodes...)
	p, err := readRun(f.write(t, "answers"))
	if err != nil {
		t.Fatal(err)
	}
	if p.Sampled != 40 || len(p.Samples) != 1 || strings.Contains(p.Samples[0].Answer, "old") {
		t.Errorf("of step %d: %+v", p.Sampled, p.Samples)
	}
}

// The mean of the last tenth is of one value at least.
func TestAtEnd(t *testing.T) {
	values := make([]float64, 20)
	for i := range values {
		values[i] = float64(i)
	}
	for n, want := range map[int]float64{1: 0, 3: 2, 10: 9, 20: 18.5} {
		if got := atEnd(values[:n]); got != want {
			t.Errorf("of %d values: %g, want %g", n, got, want)
		}
	}
}

// Thinned, a long curve keeps the lowest and the highest point of each of its columns, in order.
func TestThin(t *testing.T) {
	points := make([]point, 10*columns)
	for i := range points {
		points[i] = point{X: float64(i)}
		switch i % 10 {
		case 3:
			points[i].Y = float64(i)
		case 7:
			points[i].Y = -float64(i)
		}
	}
	got := thin(points)
	if len(got) != 2*columns {
		t.Fatalf("%d points, want %d", len(got), 2*columns)
	}
	for i, p := range got {
		if want := points[10*(i/2)+3+4*(i%2)]; p != want {
			t.Fatalf("point %d is %v, want %v", i, p, want)
		}
	}
}

// A value of exactly 0 has its place under the decades of a logarithmic axis.
func TestLogScale(t *testing.T) {
	s := newLogScale(1e-6, 1e-2, 200, 0, 230, 5)
	for v, want := range map[float64]float64{0: 230, 1e-6: 200, 1e-4: 100, 1e-2: 0} {
		if got := s.at(v); got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%g is at %g, want %g", v, got, want)
		}
	}
}
