package train

import (
	"slices"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// lesson is a sample with what the objective knows of each of its rows; see [optim.Rows].
type lesson struct {
	data.Sample
	weight, rollout, old, reference, advantage []float32 // [T]; nil: not known
	// [T]: [kernels.Inverse] of the temperature of log-probabilities; nil: 1
	inverse []float32
	stale   map[int]bool // rows whose target older weights chose
	// [T], of a loss that is not ours; it takes the place of weight
	derivative []float32
}

// rowsOf counts the rows of packs.
func rowsOf(packs [][]lesson) (n int) {
	for _, pack := range packs {
		for _, s := range pack {
			n += len(s.IDs)
		}
	}
	return n
}

// lessons makes the loss of a step the mean over its targets: each has its share of the sum of their weights, which is
// that of the whole step, taken in its order. Where all weights are 1 that is 1 over the number of targets.
func lessons(packs [][]data.Sample) [][]lesson {
	sum := 0.0
	for _, pack := range packs {
		for _, s := range pack {
			sum += s.Weight()
		}
	}
	if sum == 0 {
		sum = 1 // no target: nothing is divided
	}
	out := make([][]lesson, len(packs))
	for i, pack := range packs {
		for _, s := range pack {
			out[i] = append(out[i], lesson{Sample: s}.shared(sum))
		}
	}
	return out
}

// shared is the lesson with the share of each of its targets in a step whose weights have that sum.
func (l lesson) shared(sum float64) lesson {
	if l.Weights == nil {
		return l.weighed(float32(1 / sum))
	}
	l.weight = make([]float32, len(l.Weights))
	for i, w := range l.Weights {
		l.weight[i] = float32(float64(w) / sum)
	}
	return l
}

// pack lays the lessons of a step out in packs of at most so many rows, units of some after another in the same one,
// and gives each row its weight; see [optim.Aggregate].
func pack(batch []lesson, unit int, aggregate string, longest, packRows int) (packs [][]lesson) {
	var order []int
	lengths := make([]int, len(batch))
	for i := range batch {
		lengths[i] = batch[i].Learned()
		if i%unit == 0 {
			order = append(order, i)
		}
	}
	rows := func(first int) (n int) {
		for _, le := range batch[first : first+unit] {
			n += len(le.IDs)
		}
		return n
	}
	weights := optim.Aggregate(aggregate, lengths, longest)
	for _, p := range data.FirstFit(order, rows, packRows) {
		var lessons []lesson
		for _, first := range p.Samples {
			for i, le := range batch[first : first+unit] {
				lessons = append(lessons, le.weighed(weights[first+i]))
			}
		}
		packs = append(packs, lessons)
	}
	return packs
}

// weighed is the lesson with one weight for each of its rows, or with the derivatives that were given.
func (l lesson) weighed(weight float32) lesson {
	if l.weight = l.derivative; l.weight == nil {
		l.weight = slices.Repeat([]float32{weight}, len(l.IDs))
	}
	return l
}

// targets puts on the device what the rows of packs are to predict.
func targets(r *parallel.Rank, packs [][]lesson, rows optim.Rows) model.Targets {
	t := model.Targets{IDs: parallel.Upload(r, rows.Targets)}
	var inverse []float32
	for _, pack := range packs {
		for _, s := range pack {
			inverse = append(inverse, s.inverse...)
		}
	}
	if inverse != nil {
		t.Inverse = parallel.Upload(r, inverse)
	}
	return t
}

// assemble lays lessons out one after the other, each a sequence of its own.
func assemble(packs [][]lesson) (ids []int32, rows optim.Rows, l *kernels.Layout) {
	l = &kernels.Layout{Packs: []int32{0}}
	for _, pack := range packs {
		for _, s := range pack {
			l.Spans = append(l.Spans, kernels.Span{Row: len(ids), Rows: len(s.IDs)})
			rows.Sequences = append(rows.Sequences, len(ids))
			ids = append(ids, s.IDs...)
			rows.Targets = append(rows.Targets, s.Targets...)
			rows.Weight = append(rows.Weight, s.weight...)
			rows.Rollout = append(rows.Rollout, s.rollout...)
			rows.Old = append(rows.Old, s.old...)
			rows.Reference = append(rows.Reference, s.reference...)
			rows.Advantage = append(rows.Advantage, s.advantage...)
		}
		l.Packs = append(l.Packs, int32(len(ids)))
	}
	rows.Sequences = append(rows.Sequences, len(ids))
	return ids, rows, l
}
