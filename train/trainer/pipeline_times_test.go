package trainer_test

import (
	"testing"

	"lockstep/data"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// checkSteps holds that tasks of two steps are within them, and their updates behind them.
func checkSteps(t *testing.T, rank int, steps []trainer.StepTime, tasks []trainer.TaskTime) {
	t.Helper()
	if len(steps) != 2 {
		t.Fatalf("rank %d has noted %d steps, want 2", rank, len(steps))
	}
	each := len(tasks) / 2
	for i, st := range steps {
		first, last := tasks[i*each], tasks[(i+1)*each-1]
		if first.From < st.From || st.Computed < last.To || st.To <= st.Computed || i > 0 && st.From < steps[i-1].To {
			t.Errorf("rank %d, step %d: %+v for tasks from %g to %g", rank, i, st, first.From, last.To)
		}
	}
}

// The ranks of a pipeline note the tasks of each step in their order, one behind the other. The second one waits for
// its first rows at least, the first one for none.
func TestTimeTasks(t *testing.T) {
	s, err := testshape.Parse([]string{"parallel.ranks=2", "parallel.stages=2", "pipeline.schedule=zero-bubble"})
	if err != nil {
		t.Fatal(err)
	}
	batch := trainer.Supervised([][]data.Sample{{sequence(1, 9)}, {sequence(2, 7)}, {sequence(5, 9)}})
	tasks := schedule.New(schedule.ZeroBubble, 2, 1, 1, len(batch.Packs))
	onRanks(t, s, 2, 1, false, func(_ *parallel.Rank, _ model.Replicas, tr *trainer.Trainer) {
		end := tr.TimeSteps()
		tr.Step(1, batch)
		tr.Step(2, batch)
		times := end()
		tr.Step(3, batch)
		for rank, of := range times {
			list := of.Tasks
			checkSteps(t, rank, of.Steps, list)
			if n := len(tasks.Ranks[rank]); len(list) != 2*n {
				t.Fatalf("rank %d has noted %d tasks, want %d twice", rank, len(list), n)
			}
			at := 0.0
			for i, of := range list {
				if of.Task != tasks.Ranks[rank][i%len(tasks.Ranks[rank])] {
					t.Errorf("rank %d, task %d is %v", rank, i, of.Task)
				}
				if of.From < at || of.Ready < of.From || of.To <= of.Ready {
					t.Errorf("rank %d: %+v begins before %g", rank, of, at)
				}
				at = of.To
			}
			if first := list[0]; (first.Ready > first.From) != (rank == 1) {
				t.Errorf("rank %d waits for its first rows: %+v", rank, first)
			}
		}
	})
}

// Micro-batches are of the device that takes longest for them, the update of the one that waits for no other: here of
// two steps of three updates.
func TestMeanStep(t *testing.T) {
	of := func(micros, update float64) (times trainer.RankTimes) {
		for range 3 {
			times.Steps = append(times.Steps, trainer.StepTime{From: 1, Computed: 1 + micros, To: 1 + micros + update})
		}
		return times
	}
	ranks := []trainer.RankTimes{of(2, 0.75), of(4, 0.5), of(3, 1)}
	if micros, update := trainer.MeanStep(ranks, 2); micros != 6 || update != 0.75 {
		t.Errorf("micro-batches %v s, the update %v s, want 6 and 0.75", micros, update)
	}
}
