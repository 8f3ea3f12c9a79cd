package bench

import (
	"context"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/parallel/schedule"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// What is missing to twice the speed of one rank goes into seven parts, by hand: two micro-batches by two ranks, of
// which the second takes three times as long, and whose rows take a quarter of a second. The first rank's host comes
// half a second late to its second task.
func TestPipelineTimes(t *testing.T) {
	span := func(kind schedule.Kind, micro int, from, ready, to float64) trainer.TaskTime {
		return trainer.TaskTime{Task: schedule.Task{Kind: kind, Micro: micro}, From: from, Ready: ready, To: to}
	}
	f, b := schedule.Forward, schedule.Backward
	step := func(at float64) [2][]trainer.TaskTime {
		return [2][]trainer.TaskTime{
			{span(f, 0, at, at, at+1), span(f, 1, at+1.5, at+1.5, at+2.5), span(b, 0, at+2.5, at+10.5, at+12.5),
				span(b, 1, at+12.5, at+19.5, at+21.5)},
			{span(f, 0, at, at+1.25, at+4.25), span(b, 0, at+4.25, at+4.25, at+10.25),
				span(f, 1, at+10.25, at+10.25, at+13.25), span(b, 1, at+13.25, at+13.25, at+19.25)},
		}
	}
	first, second := step(0), step(30)
	p := timesOf(schedule.OneF1B, 1, 2, []trainer.RankTimes{{Tasks: append(first[0], second[0]...)},
		{Tasks: append(first[1], second[1]...)}})
	// means are 2 and 4 s: 1F1B takes 3 times 6
	if want := (pipelineTimes{took: 21.5, computed: 12, between: 0.25, even: 18, uneven: 21,
		tasks: "1000.00 + 2000.00, 3000.00 + 6000.00"}); p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	timed := func(from, computed, to float64) trainer.StepTime {
		return trainer.StepTime{From: from, Computed: computed, To: to}
	}
	steps := stepTimesOf([]trainer.RankTimes{{Steps: []trainer.StepTime{timed(0, 21.5, 23.5), timed(30, 51.5, 54)}},
		{Steps: []trainer.StepTime{timed(1, 20.5, 23.5), timed(31, 51, 54)}}}, 2)
	if want := (stepTimes{micros: 21.5, update: 2.25}); steps != want {
		t.Errorf("%+v, want %+v", steps, want)
	}
	var out strings.Builder
	m := onMesh{ranks: configs.Parallel{Ranks: 2, Stages: 2}, train: 16, step: 25, times: steps, pipeline: p, micros: 2,
		bubble: 0.25}
	m.printBubble(&out, onMesh{train: 10, step: 40, times: stepTimes{micros: 33, update: 4}}) // of 40 s for 25
	got := strings.Join(regexp.MustCompile(`-?\d\.\d{3}`).FindAllString(out.String(), -1), " ")
	if want := "0.200 0.250 0.240 0.120 0.010 0.010 -0.180 0.010 -0.010"; got != want {
		t.Errorf("%s, want %s:\n%s", got, want, out.String())
	}
	m.printStep(&out, "2 ranks")
	onMesh{step: 40, times: stepTimes{micros: 33, update: 4}}.printStep(&out, "one rank")
	for _, want := range []string{
		"a step of one rank takes 40000.00 ms: micro-batches 33000.00, update 4000.00, the pause behind it 3000.00",
		"a step of 2 ranks takes 25000.00 ms: micro-batches 21500.00, update 2250.00, the pause behind it 1250.00",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// Of a step that goes by its schedule nothing is lost to rows, whatever the chunks of each rank take.
func TestPipelineTimesOfChunks(t *testing.T) {
	s := schedule.New(schedule.Interleaved, 2, 2, 1, 4)
	if got := spelled(schedule.Costs{{Forward: 1e6, Backward: 25e5, Weights: 5e5}}); got != "1.00 + 2.50 + 0.50" {
		t.Errorf("tasks of %s ms", got)
	}
	costs := schedule.Costs{{Forward: 1e6, Backward: 2e6}, {Forward: 3e6, Backward: 5e6}, {Forward: 2e6, Backward: 7e6},
		{Forward: 4e6, Backward: 9e6}}
	spans, err := s.Simulate(costs)
	if err != nil {
		t.Fatal(err)
	}
	ranks := make([]trainer.RankTimes, 2)
	for rank, list := range spans {
		at := 0
		for _, sp := range list {
			ranks[rank].Tasks = append(ranks[rank].Tasks, trainer.TaskTime{Task: sp.Task,
				From: float64(at) / nanoseconds, Ready: float64(sp.From) / nanoseconds,
				To: float64(sp.To) / nanoseconds})
			at = sp.To
		}
	}
	p := timesOf(schedule.Interleaved, 2, 1, ranks)
	_, ns := s.Times(costs)
	if end := float64(ns) / nanoseconds; math.Abs(p.uneven-end) > 1e-6 || math.Abs(p.took-end) > 1e-6 {
		t.Errorf("%+v, want %g", p, end)
	}
}

// The benchmark of a pipeline tells its tasks' times, and has the bits of one rank.
func TestRanksOfPipeline(t *testing.T) {
	for _, name := range []string{schedule.OneF1B, schedule.ZeroBubble, schedule.Interleaved} {
		s, err := testshape.Parse([]string{"parallel.ranks=2", "parallel.stages=2", "run.packs=4", "run.micro_batch=1",
			"model.config.num_hidden_layers=4", "pipeline.schedule=" + name})
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := Ranks(context.Background(), s, RanksOptions{Steps: 2, Out: &out}); err != nil {
			t.Fatal(err)
		}
		cut := map[string]string{schedule.Interleaved: "blocks in 2 stages of 2 chunks: 1, 1, 1, 1"}[name]
		if !regexp.MustCompile(`blocks in 2 stages(: \d, \d| of 2 chunks: 1, 1, 1, 1)\n`).MatchString(out.String()) ||
			!strings.Contains(out.String(), cut) {
			t.Errorf("%s: the cut is not told:\n%s", name, out.String())
		}
		if n := strings.Count(out.String(), "the pause behind it"); n != 2 {
			t.Errorf("%s: what a step takes is told %d times:\n%s", name, n, out.String())
		}
		sum, parts := 0.0, regexp.MustCompile(`(?m)^ *(-?\d\.\d{3})(?: +\d\.\d{3})?  +(missing|the schedule|as )`).
			FindAllStringSubmatch(out.String(), -1)
		if len(parts) != 8 {
			t.Fatalf("%s: %q of\n%s", name, parts, out.String())
		}
		for i, part := range parts {
			n := number(t, part[1])
			if i == 0 {
				n = -n
			}
			sum += n
		}
		if math.Abs(sum) > 0.004 {
			t.Errorf("%s: parts are not the whole, by %.3f:\n%s", name, sum, out.String())
		}
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
