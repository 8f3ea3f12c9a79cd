package trainer_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
	"lockstep/train/setup"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// sequence is a sample of n tokens from first on, of which all but the first have a target.
func sequence(first int32, n int) data.Sample {
	s := data.Sample{IDs: make([]int32, n), Targets: make([]int32, n)}
	for i := range n {
		s.IDs[i], s.Targets[i] = first+int32(i), first+int32(i)+1
	}
	s.Targets[0] = -1
	return s
}

// A batch finds the rows of each of its samples, whatever pack they are in, and leaves out stale targets alone.
func TestBatchIndex(t *testing.T) {
	stale := trainer.Sample{Sample: sequence(20, 4), Stale: map[int]bool{2: true}}
	packs := [][]trainer.Sample{{{Sample: sequence(1, 3)}, {Sample: sequence(10, 2)}}, {stale}}
	b := trainer.NewBatch(packs, 64)
	if want := []int32{1, 2, 3, 10, 11, 20, 21, 22, 23}; !slices.Equal(b.IDs, want) {
		t.Fatalf("ids %v, want %v", b.IDs, want)
	}
	if want := []int32{0, 5, 9}; !slices.Equal(b.Layout.Segments, want) || len(b.Layout.Spans) != 3 ||
		b.Inverse != nil {
		t.Errorf("segments %v of %d spans, want %v of 3", b.Layout.Segments, len(b.Layout.Spans), want)
	}
	long := trainer.NewBatch([][]trainer.Sample{{{Sample: sequence(1, 3)}}, {{Sample: sequence(1, 130)}}}, 64)
	if want := []int32{0, 3, 67, 131, 133}; !slices.Equal(long.Layout.Segments, want) {
		t.Errorf("segments %v of packs of 3 and 130 rows, want %v", long.Layout.Segments, want)
	}
	rows := []float32{0, 1, 2, 3, 4, 5, 6, 7, 8}
	for i, want := range [][]float32{{0, 1, 2}, {3, 4}, {5, 6, 7, 8}} {
		if got := b.Of(i, rows); !slices.Equal(got, want) {
			t.Errorf("sample %d has rows %v, want %v", i, got, want)
		}
	}
	fresh := slices.Clone(b.Rows.Targets)
	fresh[7] = -1
	if got := b.Fresh().Targets; !slices.Equal(got, fresh) || b.Rows.Targets[7] != 23 {
		t.Errorf("fresh targets %v of %v, want %v", got, b.Rows.Targets, fresh)
	}
}

// Weights of a supervised step times its scale add up to 1 over its targets, whatever packs they are in.
func TestSupervised(t *testing.T) {
	half := sequence(9, 3)
	half.Weights = []float32{0, 0.5, 1}
	batch := trainer.Supervised([][]data.Sample{{sequence(1, 3)}, {half, sequence(30, 5)}})
	sum := 0.0
	for _, pack := range batch.Packs {
		for _, s := range pack {
			for i, w := range s.Weight {
				if s.Targets[i] >= 0 {
					sum += batch.Scale * float64(w)
				}
			}
		}
	}
	if math.Abs(sum-1) > 1e-6 {
		t.Errorf("weights add up to %g", sum)
	}
	if got := batch.Packs[1][0].Weight[1]; got != 0.5 || batch.Scale != 1/7.5 {
		t.Errorf("weight %g times %g, want 0.5 times %g", got, batch.Scale, 1/7.5)
	}
}

// A trainer needs no run: it takes the same step by any micro-batch, which brings the loss down, on a device and a
// model of whoever has them.
func TestStep(t *testing.T) {
	s, err := testshape.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	packs := [][]data.Sample{{sequence(1, 9), sequence(4, 7)}, {sequence(2, 12)}, {sequence(5, 5)}}
	batch := trainer.Supervised(packs)
	var losses [][]float64
	for _, micro := range []int{1, 2, 3} {
		dev, err := devices.Open(setup.Device(s))
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		var of []float64
		err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
			_, tr, err := begin(r, dev, s, func(o *trainer.Options) { o.MicroBatch = micro })
			if err != nil {
				return err
			}
			mean := tr.EvalLoss(packs) // of the weights before the first step
			for step := 1; step <= 8; step++ {
				res := tr.Step(step, batch)
				if step == 1 && math.Abs(res.Loss-mean) > 1e-9 {
					t.Errorf("the loss of the step is %g, the mean over its targets %g", res.Loss, mean)
				}
				if err := res.Finite(); err != nil {
					return err
				}
				of = append(of, res.Loss, res.Norm)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, of)
	}
	for i, of := range losses[1:] {
		if !slices.Equal(of, losses[0]) {
			t.Errorf("micro-batches of %d: losses and norms %v, want %v", i+2, of, losses[0])
		}
	}
	if first, last := losses[0][0], losses[0][14]; !(last < first) {
		t.Errorf("loss %g after 8 steps, %g before", last, first)
	}
}

// A step whose update is deferred to the next one gives the bits of one that ends with it, on copies that are carried
// out late; what reads weights in between is a bug that does not go unnoticed.
func TestDeferredUpdate(t *testing.T) {
	batch := trainer.Supervised([][]data.Sample{{sequence(1, 9), sequence(4, 7)}, {sequence(2, 12)}, {sequence(5, 5)}})
	run := func(later bool, seed uint64, updated, dtype string) (sum [sha256.Size]byte) {
		s, err := testshape.Parse([]string{"offload.optimizer=true", "offload.ring=0.0001", "model.dtype=" + dtype,
			"offload.host_update=" + updated, "offload.breadth=3"})
		if err != nil {
			t.Fatal(err)
		}
		onHost(t, s, seed, later, func(dev kernels.Device, r *parallel.Rank, m *model.Model, tr *trainer.Trainer) {
			for step := 1; step <= 4; step++ {
				tr.Step(step, batch)
				if m.Deferred() != later {
					t.Errorf("an update is deferred: %t", m.Deferred())
				}
			}
			for name, read := range map[string]func(){
				"forward": func() { tr.LogProbs(batch.Packs) }, "verify": func() { m.TrainForward(r, nil, true) },
				"save": func() { m.Tensors() }, "optimizer": func() { tr.Replicas.OptimizerTensors() }} {
				if later && !panics(read) {
					t.Errorf("%s reads weights whose update is deferred", name)
				}
			}
			sum = finished(t, m, tr)
			if order := updates(m, tr, batch); updated == "0" && later && order != "0 1 2.3 2.7 2 3.3 3.7 3" {
				t.Errorf("units are updated in the order %s", order)
			}
		})
		return sum
	}
	for _, dtype := range []string{"bf16", "fp32"} {
		want := run(false, 0, "0", dtype)
		for seed, updated := range []string{"0", "1", "0.00002", "0.0001"} {
			if run(true, uint64(seed), updated, dtype) != want || run(false, uint64(seed), updated, dtype) != want {
				t.Errorf("%s, seed %d, %s GiB updated by the host: other bits", dtype, seed, updated)
			}
		}
	}
}

// A norm that is not finite leaves weights and states as they were, whoever updates them, and the gradients that are
// behind it.
func TestNotFiniteUpdate(t *testing.T) {
	for _, set := range [][]string{{"offload.host_update=1"}, {"offload.host_update=0.00002"},
		{"offload.host_update=1", "model.dtype=bf16"}} {
		s, err := testshape.Parse(append(set, "offload.optimizer=true", "offload.ring=0.0001"))
		if err != nil {
			t.Fatal(err)
		}
		onHost(t, s, 3, true, func(dev kernels.Device, r *parallel.Rank, m *model.Model, tr *trainer.Trainer) {
			batch := trainer.Supervised([][]data.Sample{{sequence(1, 9)}})
			tr.Step(1, batch)
			want := finished(t, m, tr)
			batch.Scale = math.NaN()
			if res := tr.Step(2, batch); res.Finite() == nil {
				t.Error("a step of a scale that is NaN is finite")
			}
			if finished(t, m, tr) != want {
				t.Errorf("%v: a step that is not finite has changed weights or states", set)
			}
			for _, s := range m.Shards { // the scale is the optimizer's, so gradients are numbers
				if g := model.ReadValues(dev, s.Grad); !slices.ContainsFunc(g, func(x float32) bool { return x != 0 }) {
					t.Errorf("%v: the gradient of %s is gone", set, s.Param.Name)
				}
			}
		})
	}
}

// updates is the order in which a step updates the units of a model, 2.3 for a third of unit 2.
func updates(m *model.Model, tr *trainer.Trainer, batch trainer.GlobalBatch) string {
	var order []string
	units := model.Units(m.Shards)
	m.DeferUpdate(units, func(r *parallel.Rank, from, to int) {
		order = append(order, fmt.Sprint(units[from]))
	}, func(r *parallel.Rank, from, to int, share float64) {
		order = append(order, fmt.Sprintf("%.1f", float64(units[from])+share))
	})
	tr.Step(9, batch)
	return strings.Join(order, " ")
}

// begin makes the trainer of a shape's 8 steps, with options that set may change.
func begin(r *parallel.Rank, dev kernels.Device, s *configs.Shape, set func(o *trainer.Options)) (*model.Model,
	*trainer.Trainer, error) {
	m, _, err := setup.OpenTrained(dev, s)
	if err != nil {
		return nil, nil, err
	}
	o, err := setup.TrainerOptions(s, 8, nil)
	if err != nil {
		return nil, nil, err
	}
	set(&o)
	return m, trainer.New(r, m, o), nil
}

// onHost trains on one CPU rank whose copies are late, with or without updates that are left to the next step.
func onHost(t *testing.T, s *configs.Shape, seed uint64, later bool,
	body func(dev kernels.Device, r *parallel.Rank, m *model.Model, tr *trainer.Trainer)) {
	t.Helper()
	dev, err := cpu.New(setup.Definition(s), cpu.Options{Threads: 1, DelayCopies: seed})
	if err != nil {
		t.Fatal(err)
	}
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		m, tr, err := begin(r, dev, s, func(o *trainer.Options) { o.Defer = later })
		if err != nil {
			return err
		}
		body(dev, r, m, tr)
		return nil
	})
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
}

// finished is the digest of weights and states once updates that were left are done.
func finished(t *testing.T, m *model.Model, tr *trainer.Trainer) (sum [sha256.Size]byte) {
	tr.Finish()
	h := sha256.New()
	for _, of := range append(m.Tensors(), tr.Replicas.OptimizerTensors()...) {
		if err := of.Write(h); err != nil {
			t.Fatal(err)
		}
	}
	h.Sum(sum[:0])
	return sum
}

// Copies of updated weights that the next forward waits for, unit by unit, give the bits of a step that waits for them,
// with copies that are carried out late, for segments of a rank that are one sum, and for a head of several segments.
func TestDeferredCopies(t *testing.T) {
	s, err := testshape.Parse([]string{"model.dtype=bf16", "definition.segment=64", "run.micro_batch=2"})
	if err != nil {
		t.Fatal(err)
	}
	batch := trainer.Supervised([][]data.Sample{{sequence(1, 90)}, {sequence(2, 70)}, {sequence(5, 99)},
		{sequence(3, 9)}})
	run := func(ranks int, later bool, seed uint64) (sum [sha256.Size]byte) {
		if seed%2 == 0 { // otherwise all are one copy
			defer trainer.CopyEachUnit()()
		}
		onRanks(t, s, ranks, seed, later, func(r *parallel.Rank, replicas model.Replicas, tr *trainer.Trainer) {
			for step := 1; step <= 3; step++ {
				tr.Step(step, batch)
				if left := later && ranks > 1; replicas[0].Deferred() != left {
					t.Errorf("%d ranks: copies are left: %t", ranks, replicas[0].Deferred())
				} else if left && !panics(func() { replicas[0].Tensors() }) {
					t.Error("weights are saved that are still copied")
				}
			}
			sum = finished(t, replicas[ranks-1], tr)
		})
		return sum
	}
	want := run(1, false, 0)
	for _, ranks := range []int{1, 2, 3} {
		for seed := range uint64(4) {
			for _, later := range []bool{false, true} {
				if run(ranks, later, seed) != want {
					t.Errorf("%d ranks, seed %d, deferred %t: other bits", ranks, seed, later)
				}
			}
		}
	}
}

// onRanks runs a body on the first of some ranks, with the models of all of them and a trainer, on copies that are
// carried out late.
func onRanks(t *testing.T, s *configs.Shape, ranks int, seed uint64, later bool,
	body func(r *parallel.Rank, replicas model.Replicas, tr *trainer.Trainer)) {
	t.Helper()
	var devs []kernels.Device
	for range ranks {
		dev, err := cpu.New(setup.Definition(s), cpu.Options{Threads: 1, DelayCopies: seed})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		devs = append(devs, dev)
	}
	of := s.Parallel
	w, err := parallel.Open(devs, parallel.Mesh{Experts: of.Experts, Context: of.Context, Stages: of.Stages})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if of.Stages == 1 && of.Experts == 1 && of.Weights == "replicated" {
		devs = devs[:1] // each has all weights
	}
	err = w.Lead(func(r *parallel.Rank) error {
		m, _, err := setup.OpenModel(devs, s)
		if err != nil {
			return err
		}
		replicas, err := model.Replicate(w, m)
		if err != nil {
			return err
		}
		if err := replicas.TrainShards(w); err != nil {
			return err
		}
		o, err := setup.TrainerOptions(s, 8, nil)
		if err != nil {
			return err
		}
		o.Defer = later
		body(r, replicas, trainer.NewReplicated(w, r, replicas, o))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Ranks of a pipeline update what they own, with states that come from the host, and have the others' weights when
// that is finished, of a tied head before the next step. The first rank updates a block in the forward that computes
// with it.
func TestDeferredPipeline(t *testing.T) {
	batch := trainer.Supervised([][]data.Sample{{sequence(1, 9)}, {sequence(2, 7)}, {sequence(5, 9)}})
	for set, units := range map[string]int{"model.config.tie_word_embeddings=false": 6, "model.dtype=bf16": 5,
		"lora.rank=4": 4} {
		run := func(ranks int, later bool, seed uint64) (sum [sha256.Size]byte) {
			s, err := testshape.Parse([]string{set, "offload.optimizer=true", "offload.ring=0.0001",
				"model.config.num_hidden_layers=4"})
			if err != nil {
				t.Fatal(err)
			}
			s.Parallel.Ranks, s.Parallel.Stages = ranks, ranks
			s.Pipeline.Schedule = []string{schedule.Stream, schedule.ZeroBubble, schedule.Interleaved}[seed]
			onRanks(t, s, ranks, seed, later, func(r *parallel.Rank, replicas model.Replicas, tr *trainer.Trainer) {
				for step := 1; step <= 3; step++ {
					tr.Step(step, batch)
					if replicas[0].Deferred() != later || later && !panics(func() { replicas[0].Tensors() }) {
						t.Errorf("an update is deferred: %t, want %t", replicas[0].Deferred(), later)
					}
				}
				if sum = finished(t, replicas[ranks-1], tr); ranks == 1 {
					return
				}
				inForward := 0
				replicas[0].DeferUpdate(model.Units(replicas[0].Shards), func(by *parallel.Rank, from, to int) {
					if by != r { // a lane, of a micro-batch
						inForward++
					}
				}, nil)
				tr.Step(4, batch)
				if inForward != units {
					t.Errorf("%s: %d units are updated in a forward of the first rank, want %d", set, inForward, units)
				}
				tr.Finish()
			})
			return sum
		}
		want := run(1, false, 0)
		for seed := range uint64(3) {
			for _, later := range []bool{false, true} {
				if run(2, later, seed) != want {
					t.Errorf("%s, seed %d, deferred %t: other bits", set, seed, later)
				}
			}
		}
	}
}

// panics tells whether a body does.
func panics(body func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	body()
	return false
}
