package trainer

import (
	"slices"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
)

// Peak takes the largest step that so many packs of at most so many rows can make, on a rank whose device counts memory
// and computes nothing, and which stands for one of r.Size. One share stands for all; what a step keeps of the others
// is reserved. Cross entropy stands for every objective: one that passes the vocabulary twice takes no more
// memory in its first pass. Packs that are too short for all ranks of a context may leave one of them more rows.
func (t *Trainer) Peak(packs, rows int) {
	peak := func(packs, rows int) {
		t.largestStep(packs, t.fullPart(min(packs, t.lanePacks()), rows), func(int, int, int) {})
	}
	peak(packs, rows)
	segment := t.Rank.Dev.Definition().Segment
	for n := 1; n < t.Context && n*segment < rows; n++ {
		if t.fullPart(1, n*segment).rows() > t.fullPart(1, rows).rows() {
			peak(packs, n*segment)
		}
	}
}

// PeakLogProbs is [Peak] of log-probabilities without gradients, of packs of so many rows.
func (t *Trainer) PeakLogProbs(rows int) {
	logProbs(t.Rank, t.Model, slices.Repeat([]batchPart{t.fullPart(1, rows)}, t.passes())...)
}

// fullPart is what the rank computes of so many full packs.
func (t *Trainer) fullPart(packs, rows int) batchPart {
	full, segment := t.fullPacks(packs, rows), t.Rank.Dev.Definition().Segment
	parts := contextOf(segments(full, segment), t.Context)
	return NewBatch(full, segment).part(place{part: t.Rank.ID % parts, parts: parts})
}

// longestPart is the part of so many full packs that has the most segments.
func (t *Trainer) longestPart(packs, rows int) batchPart {
	b := t.fullPart(packs, rows)
	return b.part(place{part: b.ranks() - 1, parts: b.ranks()})
}

// StepWork is what the rank that has most rows computes in a step of full packs, and gets from other ranks.
type StepWork struct {
	Micro  meta.Work // of a micro-batch
	Micros int       // of the rank
	Share  int       // of them, go through the model together
	Update meta.Work // behind them
}

// StepWork counts the step of [Trainer.Peak] on a device that counts work.
func (t *Trainer) StepWork(packs, rows int) (w StepWork) {
	dev := t.Rank.Dev.(*meta.Device)
	dev.CountWork(true)
	defer dev.CountWork(false)
	t.largestStep(packs, t.longestPart(min(packs, t.lanePacks()), rows), func(lanes, share, rounds int) {
		w.Micro, w.Micros, w.Share = dev.Work().Times(1/float64(lanes*share)), rounds, share
		dev.CountWork(true)
	})
	w.Update = dev.Work()
	return w
}

// UpdateWork counts the optimizer's step of the only rank, on a device that counts work.
func (t *Trainer) UpdateWork() meta.Work {
	dev := t.Rank.Dev.(*meta.Device)
	dev.CountWork(true)
	defer dev.CountWork(false)
	t.Update(1)
	return dev.Work()
}

// ChunkWork is what a micro-batch computes in consecutive blocks.
type ChunkWork struct {
	Forward, Backward meta.Work
	Weights           meta.Work // gradients of weights that the schedule puts off
}

// ChunkWork counts a micro-batch of full packs in some blocks of the model, with the embedding where the first is among
// them, and the head where the last is, on a device that counts work. It exchanges nothing.
func (t *Trainer) ChunkWork(st model.Stage, packs, rows int) (w ChunkWork) {
	r, m, b := t.Rank, t.Model, t.fullPart(min(packs, t.lanePacks()), rows)
	dev := r.Dev.(*meta.Device)
	counted := func(run func()) meta.Work {
		dev.CountWork(true)
		defer dev.CountWork(false)
		run()
		return dev.Work()
	}
	defer r.Stack.Release(r.Stack.Mark())
	p := &model.Pass{Batch: b.upload(r), D: r.Stack.New(m.DType, b.rows(), m.Hidden)}
	p.X, p.Dropout = r.Stack.New(m.DType, b.rows(), m.Hidden), m.DropoutAt(0, 0)
	if plain := (&Trainer{Options: Options{Objective: optim.SFT{}}}); st.Last() {
		p.LogProb, p.Targets = r.Stack.New(kernels.F32, 1, b.rows()), b.targets(r)
		p.Loss = plain.loss(r, p.LogProb, b, nil)
	}
	w.Forward = counted(func() { st.StepForward(r, p, t.Keep) })
	backward := func() { st.StepBackward(r, p) }
	if !t.putsOff() {
		w.Backward = counted(backward)
		return w
	}
	var later *parallel.WeightGrads
	w.Backward = counted(func() { later = r.PutOff(r.Lanes(2)[1].Stack, backward) })
	w.Weights = counted(func() { later.Compute(r) })
	return w
}

// putsOff tells whether a pipeline puts gradients of weights off.
func (t *Trainer) putsOff() bool { return schedule.Schedule{Name: t.PipelineSchedule}.PutsOff() }

// ForwardWork counts a forward of so many packs.
func (t *Trainer) ForwardWork(packs, rows int) meta.Work {
	dev := t.Rank.Dev.(*meta.Device)
	dev.CountWork(true)
	defer dev.CountWork(false)
	LogProbs(t.Rank, t.Model, t.fullPacks(packs, rows))
	return dev.Work()
}

// SharePacks is how many packs a lane of a rank takes through the model together, of a step of so many.
func (t *Trainer) SharePacks(packs int) int {
	micro := min(packs, t.lanePacks())
	places := (packs + micro - 1) / micro * max(t.Context, 1)
	return micro * len(t.shares(places, t.Rank.Size)[0])
}

// fullPacks is so many full packs.
func (t *Trainer) fullPacks(packs, rows int) [][]Sample {
	return Supervised(slices.Repeat([][]data.Sample{t.FullPack(rows)}, packs)).Packs
}

// largestStep takes a step whose micro-batches are each b on this rank. It tells computed how many lanes have computed
// a share each, of how many micro-batches, and how many the rank has in all.
func (t *Trainer) largestStep(packs int, b batchPart, computed func(lanes, share, rounds int)) {
	r, micro := t.Rank, min(packs, t.lanePacks())
	if t.Model.Stages() > 0 {
		t.largestPipeline((packs+micro-1)/micro, b, computed)
		return
	}
	places := (packs + micro - 1) / micro * b.ranks()
	rounds := (places + r.Size - 1) / r.Size
	most := len(t.shares(places, r.Size)[0])
	lanes := r.Lanes(min(t.lanes(), rounds))
	plain := *t
	plain.Objective = optim.SFT{}
	for _, lane := range lanes {
		defer lane.Stack.Release(lane.Stack.Mark())
	}
	parallel.Interleave(lanes, func(i int, lane *parallel.Rank) {
		for range (rounds+len(lanes)-1-i)/len(lanes) - most {
			lane.Stack.New(kernels.F32, 1, b.rows())
			t.Model.NewIndexerLoss(lane, b.rows())
		}
		one := task{of: &b, dropout: t.Model.DropoutAt(0, 0)}
		plain.forwardBackward(lane, t.Model, share{tasks: slices.Repeat([]task{one}, most), several: most > 1})
	})
	computed(len(lanes), most, rounds)
	t.Model.FinishGradients(r)
	plain.Defer = false
	plain.update(r, t.Model, stepRates{step: 1, scale: 1, rowScale: 1})
}

// largestPipeline is largestStep of a rank of a pipeline, whose step has so many micro-batches. As many as are in
// flight at one time stand for all.
func (t *Trainer) largestPipeline(micros int, b batchPart, computed func(lanes, share, rounds int)) {
	r := t.Rank
	defer r.Stack.Release(r.Stack.Mark())
	few := min(micros, (1+t.ahead())*t.Model.Stages())
	if r.ID == t.Model.Stages()-1 && t.PipelineSchedule != schedule.Stream {
		for range micros - few {
			r.Stack.New(kernels.F32, 1, b.rows())
		}
	}
	plain := *t
	plain.Objective, plain.Defer = optim.SFT{}, false
	plain.runPipeline(r, t.Model, portion{}, slices.Repeat([]batchPart{b}, few), make([]MicroBatch, few))
	computed(few, 1, micros)
	t.Model.FinishGradients(r)
	plain.update(r, t.Model, stepRates{step: 1, scale: 1, rowScale: 1})
}

// FullPack returns a pack of so many rows: samples of the model's maximum length, one after the other.
func (t *Trainer) FullPack(rows int) (pack []data.Sample) {
	for left := rows; left > 0; {
		ids := make([]int32, min(left, t.Model.MaxLength))
		pack = append(pack, data.Sample{IDs: ids, Targets: ids})
		left -= len(ids)
	}
	return pack
}
