package trainer

import (
	"sync"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// stepRates is what all ranks know of a step.
type stepRates struct {
	step     int
	scale    float64 // of the loss
	lr       float64
	rowScale float64 // of the indexers' loss, a mean over rows
}

// MicroBatch is what a micro-batch, or a rank's part of it, leaves until the end of its step: log-probabilities F32 [1,
// T] on the rank's stack, and what the objective knows of the rows.
type MicroBatch struct {
	batchPart
	logprob  kernels.Tensor
	indexers *model.IndexerLoss // nil: they are frozen
	known    []float32          // logprob, once it has been read
	kl       []float32          // of the indexers, [indexers, T], once it has been read
}

// rankStep is a rank's part of a step: of each round of places, one for each rank, its own, and the update of its
// shards. Rounds are summed in the order of ranks, so gradients are sums over segments in the order of packs.
// Interleaved, consecutive rounds are on the rank's lanes. What its micro-batches measured is written to done, by
// place.
func (t *Trainer) rankStep(r *parallel.Rank, m *model.Model, by stepRates, micros [][][]Sample, places []place,
	done []MicroBatch) (norm, indexerNorm float64) {
	m.FetchStates()
	lanes := r.Lanes(t.lanes())
	for _, lane := range lanes {
		defer lane.Stack.Release(lane.Stack.Mark())
	}
	rows := firstRows(micros)
	for first := 0; first < len(places); first += len(lanes) * r.Size {
		rounds := min(len(lanes), (len(places)-first+r.Size-1)/r.Size)
		parallel.Interleave(lanes[:rounds], func(round int, r *parallel.Rank) {
			i := first + round*r.Size + r.ID
			at := model.Place{At: i, Of: len(places)}
			switch {
			case i < len(places) && places[i] != hole:
				p := places[i]
				b := NewBatch(micros[p.micro], r.Dev.Definition().Segment).part(p)
				done[i] = t.forwardBackward(r, m, b, at, m.DropoutAt(by.step, rows[p.micro]+b.from))
			case i < len(places):
				t.idle(r, m, at)
			case m.ExpertParallel():
				t.idle(r, m, model.Place{})
			}
		})
	}
	m.UseAll(r)
	m.FinishGradients(r)
	readNorms := t.update(r, m, by)
	for i := r.ID; i < len(places); i += r.Size {
		if places[i] != hole {
			done[i].read(r)
		}
	}
	return readNorms()
}

// firstRows is the row of the step that each micro-batch begins with.
func firstRows(micros [][][]Sample) []int {
	first, next := make([]int, len(micros)), 0
	for i, packs := range micros {
		first[i] = next
		for _, pack := range packs {
			for _, s := range pack {
				next += len(s.IDs)
			}
		}
	}
	return first
}

// read copies what the micro-batch measured to the host.
func (m *MicroBatch) read(r *parallel.Rank) {
	m.known = parallel.Download[float32](r, m.logprob)
	if m.indexers != nil {
		m.kl = parallel.Download[float32](r, m.indexers.KL)
	}
}

// Update takes the optimizer's step alone on the only rank, at a rate of 0, with the gradients that are there.
func (t *Trainer) Update(step int) {
	defer t.Rank.Stack.Release(t.Rank.Stack.Mark())
	t.Model.FetchStates()
	plain := *t
	plain.Defer = false
	plain.update(t.Rank, t.Model, stepRates{step: step, scale: 1, rowScale: 1})
}

// ForwardBackward computes some packs of a step as one batch on the only rank, and adds their gradients to those of its
// parameters. The result lies on the rank's stack.
func (t *Trainer) ForwardBackward(packs [][]Sample) MicroBatch {
	b := NewBatch(packs, t.Rank.Dev.Definition().Segment).part(alone)
	return t.forwardBackward(t.Rank, t.Model, b, model.Place{}, nil)
}

func (t *Trainer) forwardBackward(r *parallel.Rank, m *model.Model, b batchPart, at model.Place,
	dropout *model.Dropout) MicroBatch {
	rows := b.rows()
	r.Count(parallel.Tally{Rows: rows})
	logprob, learns := r.Stack.New(kernels.F32, 1, rows), m.NewIndexerLoss(r, rows)
	defer r.Stack.Release(r.Stack.Mark())
	on := b.upload(r)
	on.IndexerLoss, on.Place, on.Dropout = learns, at, dropout
	m.Step(r, on, logprob, b.targets(r), t.loss(r, logprob, b), t.Keep)
	return MicroBatch{batchPart: b, logprob: logprob, indexers: learns}
}

// idlePack is what a rank without a pack computes, where the others need it for its experts: no row has a target.
func idlePack() [][]Sample {
	return [][]Sample{{{Sample: data.Sample{IDs: []int32{0, 0}, Targets: []int32{-1, -1}},
		Weight: []float32{0, 0}}}}
}

// idle takes part in a micro-batch of the others, or passes sums on where it has a place. Its own rows have gradients
// of 0, and add nothing to a sum.
func (t *Trainer) idle(r *parallel.Rank, m *model.Model, at model.Place) {
	defer r.Stack.Release(r.Stack.Mark())
	b := NewBatch(idlePack(), r.Dev.Definition().Segment).part(alone)
	on := b.upload(r)
	on.IndexerLoss, on.Dropout = m.NewIndexerLoss(r, len(b.IDs)), m.DropoutAt(0, 0)
	on.Place, on.Idle = at, at.Of == 0
	none := func(from, to int) kernels.Tensor { return parallel.Upload(r, make([]float32, to-from)) }
	m.Step(r, on, r.Stack.New(kernels.F32, 1, len(b.IDs)), b.targets(r),
		model.Loss{Derivative: none}, t.Keep)
}

// loss gives the model the objective's derivatives as soon as what they need is known.
func (t *Trainer) loss(r *parallel.Rank, logprob kernels.Tensor, b batchPart) model.Loss {
	rows := b.Rows
	known := func(from, to int) []float32 { return parallel.Download[float32](r, logprob.ColRange(from, to)) }
	derivative := func(rows optim.Rows) []float32 {
		d := make([]float32, len(rows.Targets))
		t.Objective.Derivative(d, rows)
		return d
	}
	switch t.Objective.Reach() {
	case optim.ReachNone:
		return model.Loss{Derivative: parallel.Upload(r, derivative(rows)[b.from:b.to]).ColRange}
	case optim.ReachRow:
		return model.Loss{Derivative: func(from, to int) kernels.Tensor {
			part := rows.Part(b.from+from, b.from+to)
			part.LogProb = known(from, to)
			return parallel.Upload(r, derivative(part))
		}}
	}
	whole := sync.OnceValue(func() []float32 {
		rows.LogProb = b.gathered(r, known(0, b.rows()))
		return derivative(rows)[b.from:b.to]
	})
	return model.Loss{Ahead: true, Derivative: func(from, to int) kernels.Tensor {
		return parallel.Upload(r, whole()[from:to])
	}}
}

// weights lists what the optimizer updates of a model's shards.
func weights(m *model.Model, shards []*model.Shard) []optim.Weights {
	var ws []optim.Weights
	for _, s := range shards {
		w := optim.Weights{Owner: s.Owner, Sharded: s.Sharded, W: s.W, Grad: s.Grad, Copies: s.Copies()}
		if s.Q != nil {
			w.Codes = []kernels.Tensor{s.Q.Codes, s.Q.Scales}
		}
		for _, st := range s.States {
			of := optim.State{W: st.W, Master: st.Moved.Master, M: st.Moved.M, V: st.Moved.V, Grad: st.Grad,
				Use: st.Use}
			if st.Q != nil {
				of.Encode = func() { m.EncodeState(st) }
			}
			w.States = append(w.States, of)
		}
		ws = append(ws, w)
	}
	return ws
}
