package trainer

import (
	"slices"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// Peak takes the largest step that so many packs of at most so many rows can make, on a rank whose device counts memory
// and computes nothing, and which stands for one of r.Size. One micro-batch stands for all; what a step keeps of the
// others is reserved. Cross entropy stands for every objective: one that passes the vocabulary twice takes no more
// memory in its first pass.
func (t *Trainer) Peak(packs, rows int) {
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
		full := Supervised(slices.Repeat([][]data.Sample{t.FullPack(rows)}, micro)).Packs
		plain.forwardBackward(lane, t.Model, full, model.Place{})
	})
	t.Model.FinishGradients(r)
	own, indexers := trained(t.Model)
	t.update(r, own, 1, 0, 1)
	t.update(r, indexers, 1, 0, 1)
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
