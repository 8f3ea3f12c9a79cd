package trainer

import (
	"slices"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// Peak takes the largest step that so many packs of at most so many rows can make, on a rank whose device counts memory
// and computes nothing, and which stands for one of r.Size. One micro-batch stands for all; what a step keeps of the
// others is reserved. Cross entropy stands for every objective: one that passes the vocabulary twice takes no more
// memory in its first pass.
func (t *Trainer) Peak(packs, rows int) { t.largestStep(packs, rows, func(int, int) {}) }

// StepWork is what the first rank computes in a step of full packs, and gets from other ranks.
type StepWork struct {
	Micro  meta.Work // of a micro-batch
	Micros int       // of the rank
	Update meta.Work // behind them
}

// StepWork counts the step of [Trainer.Peak] on a device that counts work.
func (t *Trainer) StepWork(packs, rows int) (w StepWork) {
	dev := t.Rank.Dev.(*meta.Device)
	dev.CountWork(true)
	defer dev.CountWork(false)
	t.largestStep(packs, rows, func(lanes, rounds int) {
		w.Micro, w.Micros = dev.Work().Times(1/float64(lanes)), rounds
		dev.CountWork(true)
	})
	w.Update = dev.Work()
	return w
}

// ForwardWork counts a forward of so many packs.
func (t *Trainer) ForwardWork(packs, rows int) meta.Work {
	dev := t.Rank.Dev.(*meta.Device)
	dev.CountWork(true)
	defer dev.CountWork(false)
	LogProbs(t.Rank, t.Model, t.fullPacks(packs, rows))
	return dev.Work()
}

// fullPacks is so many full packs.
func (t *Trainer) fullPacks(packs, rows int) [][]Sample {
	return Supervised(slices.Repeat([][]data.Sample{t.FullPack(rows)}, packs)).Packs
}

// largestStep tells computed how many lanes have computed a micro-batch each, and of how many of the rank.
func (t *Trainer) largestStep(packs, rows int, computed func(lanes, rounds int)) {
	r, micro := t.Rank, min(packs, t.lanePacks())
	micros := (packs + micro - 1) / micro
	rounds := (micros + r.Size - 1) / r.Size
	lanes := r.Lanes(min(t.lanes(), rounds))
	plain := *t
	plain.Objective = optim.SFT{}
	for _, lane := range lanes {
		defer lane.Stack.Release(lane.Stack.Mark())
	}
	parallel.Interleave(lanes, func(i int, lane *parallel.Rank) {
		for range (rounds+len(lanes)-1-i)/len(lanes) - 1 {
			lane.Stack.New(kernels.F32, 1, micro*rows)
			t.Model.NewIndexerLoss(lane, micro*rows)
		}
		plain.forwardBackward(lane, t.Model, t.fullPacks(micro, rows), model.Place{},
			t.Model.DropoutAt(0, 0))
	})
	computed(len(lanes), rounds)
	t.Model.FinishGradients(r)
	plain.Defer = false
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
