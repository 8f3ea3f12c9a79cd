package trainer_test

import (
	"slices"
	"testing"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// watched notes the order of calls that a step has to keep.
type watched struct {
	*cpu.Device
	head  int // bytes of the head's gradient
	calls []string
}

func (w *watched) Read(dst []byte, src kernels.Tensor) {
	w.calls = append(w.calls, "wait for all")
	w.Device.Read(dst, src)
}

func (w *watched) ReadAsync(t kernels.Tensor) func() []int32 {
	w.calls = append(w.calls, "read")
	return w.Device.ReadAsync(t)
}

func (w *watched) AdamW(x, master, m, v, grad, factor kernels.Tensor, s kernels.AdamW,
	then ...kernels.Moments) {
	w.calls = append(w.calls, "update")
	w.Device.AdamW(x, master, m, v, grad, factor, s, then...)
}

func (w *watched) WeightGrad(dw, dy, x kernels.Tensor, rows *kernels.Groups, then ...kernels.GradRows) {
	w.calls = append(w.calls, "weights")
	w.Device.WeightGrad(dw, dy, x, rows, then...)
}

func (w *watched) CopyPeer(after []kernels.Event, copies ...kernels.PeerCopy) kernels.Event {
	if len(copies) == 1 && copies[0].Dst.Bytes() == w.head {
		w.calls = append(w.calls, "head")
	}
	return w.Device.CopyPeer(after, copies...)
}

// watch notes what the rank calls from now on.
func watch(r *parallel.Rank, m *model.Model) *watched {
	w := &watched{Device: r.Dev.(*cpu.Device), head: 4 * m.Head.W.W.Len()}
	r.Dev, r.Transfers = w, w
	return w
}

// A step waits for what it has measured, and not for the update behind it: what the host does until the next step is
// hidden there.
func TestStepLeavesUpdate(t *testing.T) {
	s, err := testshape.Parse([]string{"run.micro_batch=1"})
	if err != nil {
		t.Fatal(err)
	}
	batch := trainer.Supervised([][]data.Sample{{sequence(1, 9)}, {sequence(2, 7)}})
	onRanks(t, s, 1, 1, true, func(r *parallel.Rank, c model.Replicas, tr *trainer.Trainer) {
		w := watch(r, c[0])
		tr.Step(1, batch)
		first, last := slices.Index(w.calls, "update"), -1
		for i, call := range w.calls {
			if call == "read" {
				last = i
			}
		}
		if slices.Contains(w.calls, "wait for all") || last < 0 || first < last {
			t.Errorf("the step waits for its update: %v", w.calls)
		}
	})
}

// The head's share of a tied embedding is on its way while gradients of weights are computed that have been put off.
func TestHeadGradBehindWeights(t *testing.T) {
	s, err := testshape.Parse([]string{"parallel.ranks=2", "parallel.stages=2", "pipeline.schedule=" +
		schedule.ZeroBubble, "model.config.tie_word_embeddings=true"})
	if err != nil {
		t.Fatal(err)
	}
	batch := trainer.Supervised([][]data.Sample{{sequence(1, 9)}, {sequence(2, 7)}})
	onRanks(t, s, 2, 1, true, func(r *parallel.Rank, c model.Replicas, tr *trainer.Trainer) {
		w := watch(r, c[0])
		for step := range 2 {
			w.calls = nil
			tr.Step(1+step, batch)
			at := slices.Index(w.calls, "head")
			if at < 0 || !slices.Contains(w.calls[at:], "weights") || !slices.Contains(w.calls[:at], "weights") {
				t.Errorf("step %d: the head's share comes behind all else: %v", 1+step, w.calls)
			}
		}
	})
}

// byRow is an objective whose derivatives need log-probabilities, and notes what it is asked to measure.
type byRow struct {
	optim.SFT
	noted func(targets []int32)
}

func (byRow) Reach() optim.Reach { return optim.ReachRow }

func (o byRow) Measure(m *optim.Measures, rows optim.Rows) {
	o.noted(rows.Targets)
	o.SFT.Measure(m, rows)
}

// Micro-batches whose log-probabilities the objective has asked for are measured while others are computed, before the
// update, and no log-probability is read twice.
func TestMeasuredEarly(t *testing.T) {
	s, err := testshape.Parse([]string{"run.micro_batch=1", "definition.segment=64"})
	if err != nil {
		t.Fatal(err)
	}
	batch := trainer.Supervised([][]data.Sample{{sequence(1, 90)}, {sequence(2, 7)}, {sequence(3, 8)}})
	onRanks(t, s, 1, 1, true, func(r *parallel.Rank, c model.Replicas, tr *trainer.Trainer) {
		w := watch(r, c[0])
		var last []int32 // targets
		tr.Objective = byRow{noted: func(targets []int32) {
			w.calls = append(w.calls, "measure")
			last = append(last, targets[1])
		}}
		at := func(call string) (list []int) {
			for i, c := range w.calls {
				if c == call {
					list = append(list, i)
				}
			}
			return list
		}
		res := tr.Step(1, batch)
		measured, weights := at("measure"), at("weights")
		if len(measured) != 3 || measured[1] > weights[len(weights)-1] || measured[2] > at("update")[0] {
			t.Errorf("measured behind others: %v", w.calls)
		}
		if n := len(at("wait for all")); n != 4 || len(at("read")) != 1 {
			t.Errorf("log-probabilities are read twice: %v", w.calls)
		}
		if want := []int32{3, 4, 5}; !slices.Equal(last, want) || res.Targets != 102 {
			t.Errorf("measured %v, want %v; %d targets", last, want, res.Targets)
		}
	})
}
