package plan

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/parallel/schedule"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// Stages of a pipeline compute together what one rank does, and take what their blocks take: of a GPU the longest stage
// is timed, with the bubble of the schedule, and the fullest is told, whose experts and inputs are its own.
func TestPlanOfPipeline(t *testing.T) {
	set := []string{"device.kind=cuda", "run.packs=12", "run.micro_batch=2", "run.recompute=full",
		"model.config.num_hidden_layers=5", "model.config.tie_word_embeddings=true", "data.eval_samples=0",
		"model.config.max_position_embeddings=65536"}
	machine := round
	machine.Memory = configs.MachineMemory{Usable: 64, Host: 64}
	machine.Cards = 4
	o := &OnMachine{Machine: machine}
	open := func(more ...string) *Plan {
		s, err := tiny(more...)(set...)
		if err != nil {
			t.Fatal(err)
		}
		p, err := o.open(s)
		if err == nil {
			_, err = p.Choose(0)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	work := func(p *Plan) (list []trainer.StepWork) {
		by, err := setup.TrainerOptions(p.s, 1<<20, p.Keep)
		if err != nil {
			t.Fatal(err)
		}
		p.clearStacks()
		for i, r := range p.ranks() {
			list = append(list, trainer.New(r, p.models()[i], by).StepWork(p.s.Run.Packs, p.s.Data.PackRows))
		}
		return list
	}
	one, p := work(open())[0], open("parallel.ranks=4", "parallel.stages=0",
		"pipeline.blocks=2,1,1,1")
	sum, longest, exchanges := 0.0, 0.0, 0.0
	stages := work(p)
	for _, w := range stages {
		sum += w.Micro.FLOPs()
		longest = max(longest, clock{machine, 4}.arithmetic(w.Micro, machine.Share.Train))
		exchanges += w.Micro.Exchanged[kernels.ExchangeStages].Bytes
	}
	rows := float64(2 * p.s.Data.PackRows * p.Model.Hidden * p.Model.DType.Size())
	if sum != one.Micro.FLOPs() || exchanges != 6*rows || one.Micro.Exchanged[kernels.ExchangeStages].Bytes != 0 {
		t.Errorf("stages compute %g FLOPs of %g, and receive %g bytes, want %g", sum, one.Micro.FLOPs(), exchanges,
			6*rows)
	}
	got, want := stages[0].Update.Exchanged[kernels.ExchangeStages].Bytes, float64(4*p.Model.Head.W.W.Len())
	if got != want {
		t.Errorf("the first stage gets %g bytes of the tied head's gradient, want %g", got, want)
	}
	step, err := p.Step(machine)
	if err != nil {
		t.Fatal(err)
	}
	by, err := setup.TrainerOptions(p.s, 1<<20, p.Keep)
	if err != nil {
		t.Fatal(err)
	}
	times := p.stageTimes(clock{machine, 4}, by, p.s.Run.Packs)
	for i, of := range times {
		sum := float64(of.Forward+of.Backward+of.Weights) / nanoseconds
		want := (clock{machine, 4}).arithmetic(stages[i].Micro, machine.Share.Train) + 2*meeting
		if math.Abs(sum-want) > 1e-8 {
			t.Errorf("tasks of stage %d take %g s, want %g", i, sum, want)
		}
	}
	_, ns := schedule.New(schedule.OneF1B, 4, 1, 1, 6).Times(times)
	end := float64(ns) / nanoseconds
	if a, b := step.Parts[0], step.Parts[1]; a.Name != "arithmetic" || math.Abs(a.Seconds-6*longest) > 1e-9 ||
		b.Name != "bubble" || math.Abs(a.Seconds+b.Seconds-end) > 1e-9 || b.Seconds < 0.05*end {
		t.Errorf("%v, want %g s of arithmetic, of %g with the bubble", step.Parts, 6*longest, end)
	}
	checkFullest(t, p)
	checkBoxes(t, p, 6)
	p.static[2].Weights += 4 << 20 // which takes most now
	checkFullest(t, p)
	checkLongest(t, p)
}

// checkBoxes holds that a stage has memory for the rows of one micro-batch more than it has in flight, with their
// gradients, so that they come and go behind the others; the first one, which gets none, for gradients alone.
func checkBoxes(t *testing.T, p *Plan, micros int) {
	t.Helper()
	for i, r := range p.ranks() {
		flight := min(p.Model.Stages()-i, micros)
		want, each := flight+1, 2
		if i == 0 {
			want, each = flight, 1
		}
		bytes := each * kernels.ArenaBytes(p.Model.DType, p.s.Run.MicroBatch*p.s.Data.PackRows, p.Model.Hidden)
		have := 0
		for _, lane := range r.AllLanes()[1:] {
			if lane.Stack.Peak() == bytes {
				have++
			}
		}
		if have != want {
			t.Errorf("rank %d: %d arenas of %d bytes for rows, want %d", i, have, bytes, want)
		}
	}
}

// checkLongest holds that each rank has room for the longest sequence, and one has none for a longer one.
func checkLongest(t *testing.T, p *Plan) {
	t.Helper()
	have := p.ofRank(p.fullest()).Total()
	rows, bounded := p.longestSequence(have, 0)
	takes := func(rows int) (most int) {
		p.clearStacks()
		for i, r := range p.ranks() {
			by := trainer.Options{MicroBatch: 1, PipelineSchedule: p.s.Pipeline.Schedule, Keep: p.Keep}
			trainer.New(r, p.models()[i], by).Peak(4, rows)
			most = max(most, p.ofRank(i).Total())
		}
		return most
	}
	if takes(rows) > have || takes(rows+rowGrid) <= have || bounded || rows == 0 {
		t.Errorf("%d rows take %d, %d more take %d of %d", rows, takes(rows), rowGrid, takes(rows+rowGrid), have)
	}
}

// checkFullest holds what is told of the rank that takes most.
func checkFullest(t *testing.T, p *Plan) {
	t.Helper()
	n, err := p.Choose(0)
	if err != nil {
		t.Fatal(err)
	}
	i := p.fullest()
	st, flight := p.Model.PipelineStages(i)[0], p.Model.Stages()-i // of 6 micro-batches
	of := map[string]int{}
	for _, purpose := range p.purposes(n) {
		of[purpose.Name] = purpose.Bytes
	}
	inputs := (st.To - st.From) * kernels.ArenaBytes(p.Model.DType, flight*2*p.s.Data.PackRows, p.Model.Hidden)
	experts := (st.To - st.From) * 4 * 3 * 32 * 32 * p.Model.DType.Size()
	if of["experts"] != experts || of["block inputs"] != inputs || n.Total() != p.ofRank(i).Total() {
		t.Errorf("rank %d of blocks %d to %d: %v, want %d of experts and %d of inputs", i, st.From, st.To, of, experts,
			inputs)
	}
	for k := range p.static {
		if p.ofRank(k).Total() > n.Total() {
			t.Errorf("rank %d takes more than %d", k, i)
		}
	}
}

// Blocks are cut by their times: by plan no other cut is faster, where the head takes as long as some blocks. What the
// shape says goes before.
func TestCutByTime(t *testing.T) {
	machine := round
	machine.Memory = configs.MachineMemory{Usable: 64, Host: 64}
	seconds := func(more ...string) (float64, []float64) {
		s, err := tiny("run.packs=8", "run.micro_batch=1", "run.recompute=none", "model.config.num_hidden_layers=6",
			"model.config.vocab_size=2048", "data.eval_samples=0", "parallel.ranks=2", "parallel.stages=2")(append(more,
			"device.kind=cuda")...)
		if err != nil {
			t.Fatal(err)
		}
		o := &OnMachine{Machine: machine}
		p, err := o.open(s)
		if err == nil {
			_, err = p.Choose(0)
		}
		if err != nil {
			t.Fatal(err)
		}
		step, err := p.Step(machine)
		if err != nil {
			t.Fatal(err)
		}
		var have []float64
		for rank := range 2 {
			for _, st := range p.Model.PipelineStages(rank) {
				have = append(have, p.Model.BlocksOf(st.From, st.To))
			}
		}
		return step.Seconds, have
	}
	for _, name := range []string{schedule.OneF1B, schedule.ZeroBubble} {
		by := "pipeline.schedule=" + name
		planned, cut := seconds(by)
		for first := 0.5; first < 6; first += 0.5 {
			took, have := seconds(by, fmt.Sprintf("pipeline.blocks=%g,%g", first, 6-first))
			if !slices.Equal(have, []float64{first, 6 - first}) {
				t.Errorf("%g blocks are %v", first, have)
			}
			if took < 0.99*planned {
				t.Errorf("%s: %v takes %g s, %v takes %g", name, cut, planned, have, took)
			}
		}
		// a block is parted where stages would be uneven
		for blocks, want := range map[int][]float64{5: {2.5, 2.5}, 6: {3, 3}} {
			if _, cut := seconds(by, "model.config.vocab_size=512", fmt.Sprintf("model.config.num_hidden_layers=%d",
				blocks)); !slices.Equal(cut, want) {
				t.Errorf("%s: %d blocks and a small head are cut into %v, want %v", name, blocks, cut, want)
			}
		}
	}
}
