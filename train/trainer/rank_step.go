package trainer

import (
	"sync"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/model/checkpoint"
	"lockstep/optim"
	"lockstep/parallel"
)

// portion is packs of a step that go through the model while others may not be there yet.
type portion struct {
	stepRates
	row         int // of the step, that it begins with
	first, last bool
	known       func(place int) // is told whose log-probabilities are known before the rank has computed all
}

// stepRates is what all ranks know of a step; but for its number, from its last portion on.
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
	known    []float32          // logprob, of the first rows, as far as they have been read
	kl       []float32          // of the indexers, [indexers, T], once it has been read
}

// rankStep is a rank's part of a portion: of each round of places, one for each rank, its own, and behind the last
// portion of a step the update of its shards. Rounds are summed in the order of ranks, so gradients are sums over
// segments in the order of packs. Interleaved, consecutive rounds are on the rank's lanes. What its micro-batches
// measured is written to done, by place. It returns when that and the norms are known: weights may still be updated,
// and what the host does until the next step is behind that.
func (t *Trainer) rankStep(r *parallel.Rank, m *model.Model, by portion, micros [][][]Sample, places []place,
	done []MicroBatch) (norm, indexerNorm float64) {
	if by.first {
		m.FetchStates()
	}
	for _, lane := range r.Lanes(t.lanes()) {
		defer lane.Stack.Release(lane.Stack.Mark())
	}
	var own []int // places
	if m.Stages() > 0 {
		own = t.runPipeline(r, m, by, t.batches(micros), done)
	} else {
		own = t.rounds(r, m, by, micros, places, done)
	}
	m.UseAll(r)
	var measured []func()
	for _, i := range own {
		if places[i] != hole {
			measured = append(measured, done[i].readLater(r))
		}
	}
	readNorms := func() (own, indexers float64) { return 0, 0 }
	if by.last {
		updated := t.clock(r).update()
		m.FinishGradients(r)
		readNorms = t.update(r, m, by.stepRates)
		updated()
	} else {
		m.RestGradients(r, t.lastRank(len(places), r.Size))
	}
	for _, wait := range measured {
		wait()
	}
	return readNorms()
}

// batches are micro-batches as a rank computes them alone.
func (t *Trainer) batches(micros [][][]Sample) (list []batchPart) {
	for _, packs := range micros {
		list = append(list, NewBatch(packs, t.Rank.Dev.Definition().Segment).part(alone))
	}
	return list
}

// rounds computes the rank's place of each round, and returns the places that it had.
func (t *Trainer) rounds(r *parallel.Rank, m *model.Model, by portion, micros [][][]Sample, places []place,
	done []MicroBatch) (own []int) {
	lanes := r.Lanes(t.lanes())
	rows := firstRows(micros, by.row)
	shares := t.shares(len(places), r.Size)
	n := len(shares)
	for first := 0; first < n; first += len(lanes) * r.Size {
		rounds := min(len(lanes), (n-first+r.Size-1)/r.Size)
		parallel.Interleave(lanes[:rounds], func(round int, r *parallel.Rank) {
			at := first + round*r.Size + r.ID
			w := share{place: model.Place{At: at, Of: n, Open: !by.last}, several: len(shares[0]) > 1}
			var own []int
			if at < n {
				own = shares[at]
			}
			for _, i := range own {
				w.tasks = append(w.tasks, t.task(m, by.step, micros, places[i], rows,
					model.Place{At: i, Of: len(places), Open: !by.last}))
			}
			for m.ExpertParallel() && len(w.tasks) < len(shares[first]) {
				w.tasks = append(w.tasks, task{})
			}
			for k, result := range t.forwardBackward(r, m, w)[:len(own)] {
				if done[own[k]] = result; result.allKnown() {
					by.known(own[k])
				}
			}
		})
	}
	for at := r.ID; at < n; at += r.Size {
		own = append(own, shares[at]...)
	}
	return own
}

// shares divides the places of a step. Rounds follow one another, in which each lane of each rank has a share of at
// most [Trainer.breadth] places. Shares of a round follow one another, but of ranks that are together at a block places
// are dealt one by one. The first share of a round is its largest.
func (t *Trainer) shares(places, ranks int) (list [][]int) {
	lanes := ranks * t.lanes()
	each := lanes * t.breadth(places)
	for first := 0; first < places; first += each {
		size := min(each, places-first)
		round := make([][]int, min(lanes, size))
		for i := range size {
			at := i % len(round)
			if !t.dealt() {
				at = i * len(round) / size
			}
			round[at] = append(round[at], first+i)
		}
		list = append(list, round...)
	}
	return list
}

// breadth is how many of so many micro-batches a lane takes through the model together, at most: all where weights come
// from the host, so that they come once.
func (t *Trainer) breadth(micros int) int {
	if blocks, _ := t.Model.OnHost(); blocks > 0 {
		return micros
	}
	return max(t.Breadth, 1)
}

// lastRank is the rank of the last share of so many places, which adds to sums of gradients behind all others.
func (t *Trainer) lastRank(places, ranks int) int {
	if !t.dealt() {
		places = len(t.shares(places, ranks))
	}
	return (places - 1) % ranks
}

// dealt tells whether ranks are together at a block, so that what they compute at a time follows one another.
func (t *Trainer) dealt() bool { return t.Model.ExpertParallel() || t.Context > 1 }

// task is what a rank computes of a place; the zero task is of none, where other ranks need its experts.
type task struct {
	of      *batchPart // nil: an idle pack
	place   model.Place
	dropout *model.Dropout
}

// task is that of place p, whose micro-batch has first rows.
func (t *Trainer) task(m *model.Model, step int, micros [][][]Sample, p place, first []int, at model.Place) task {
	if p == hole {
		return task{place: at}
	}
	b := NewBatch(micros[p.micro], t.Rank.Dev.Definition().Segment).part(p)
	return task{of: &b, place: at, dropout: m.DropoutAt(step, first[p.micro]+b.from)}
}

// share is tasks that go through the model together.
type share struct {
	tasks   []task
	place   model.Place // among the shares of the step
	several bool        // tasks in some share
}

// firstRows is the row of the step that each micro-batch begins with, the first one with row next.
func firstRows(micros [][][]Sample, next int) []int {
	first := make([]int, len(micros))
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

// readLater begins to copy what the micro-batch measured to the host, as far as it is not there, and returns what waits
// for that alone.
func (m *MicroBatch) readLater(r *parallel.Rank) (wait func()) {
	var known, kl func() []float32
	if !m.allKnown() {
		known = parallel.DownloadLater[float32](r, m.logprob)
	}
	if m.indexers != nil {
		kl = parallel.DownloadLater[float32](r, m.indexers.KL)
	}
	return func() {
		if known != nil {
			m.known = known()
		}
		if kl != nil {
			m.kl = kl()
		}
	}
}

// learn keeps the log-probabilities of the next rows, which the objective asked for.
func (m *MicroBatch) learn(logprob []float32) { m.known = append(m.known, logprob...) }

// allKnown tells whether the objective has asked for the log-probabilities of all rows.
func (m *MicroBatch) allKnown() bool {
	return m.Batch != nil && len(m.known) == m.rows()
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
	return t.forwardBackward(t.Rank, t.Model, share{tasks: []task{{of: &b}}})[0]
}

// forwardBackward computes a share. What each task leaves lies on the rank's stack.
func (t *Trainer) forwardBackward(r *parallel.Rank, m *model.Model, w share) []MicroBatch {
	t.clock(r).begin()
	done := make([]MicroBatch, len(w.tasks))
	for i, of := range w.tasks {
		if of.of != nil {
			rows := of.of.rows()
			r.Count(parallel.Tally{Rows: rows})
			done[i] = MicroBatch{batchPart: *of.of, logprob: r.Stack.New(kernels.F32, 1, rows),
				indexers: m.NewIndexerLoss(r, rows)}
		}
	}
	defer r.Stack.Release(r.Stack.Mark())
	s := &model.Share{Place: w.place, Several: w.several, Dealt: w.several && t.dealt()}
	for i, of := range w.tasks {
		if of.of == nil {
			s.Passes = append(s.Passes, idlePass(r, m, of.place))
			continue
		}
		b := done[i]
		on := b.upload(r)
		on.IndexerLoss, on.Dropout = b.indexers, of.dropout
		s.Passes = append(s.Passes, &model.Pass{Batch: on, Place: of.place, LogProb: b.logprob,
			Targets: b.targets(r), Loss: t.loss(r, b.logprob, b.batchPart, done[i].learn)})
	}
	if len(s.Passes) > 0 {
		m.Step(r, s, t.Keep)
	}
	return done
}

// idlePack is what a rank without a pack computes, where the others need it for its experts: no row has a target.
func idlePack() [][]Sample {
	return [][]Sample{{{Sample: data.Sample{IDs: []int32{0, 0}, Targets: []int32{-1, -1}},
		Weight: []float32{0, 0}}}}
}

// idlePass takes part in a micro-batch of the others, or passes sums on where it has a place. Its own rows have
// gradients of 0, and add nothing to a sum.
func idlePass(r *parallel.Rank, m *model.Model, at model.Place) *model.Pass {
	b := NewBatch(idlePack(), r.Dev.Definition().Segment).part(alone)
	on := b.upload(r)
	on.IndexerLoss, on.Dropout, on.Idle = m.NewIndexerLoss(r, len(b.IDs)), m.DropoutAt(0, 0), at.Of == 0
	none := func(from, to int) kernels.Tensor { return parallel.Upload(r, make([]float32, to-from)) }
	return &model.Pass{Batch: on, Place: at, LogProb: r.Stack.New(kernels.F32, 1, len(b.IDs)), Targets: b.targets(r),
		Loss: model.Loss{Derivative: none}}
}

// leastRows is how many rows of derivatives are worth a core's while.
const leastRows = 128

// derivatives are those of rows that do not depend on one another, on all cores: a device waits for them.
func derivatives(o optim.Objective, rows optim.Rows) []float32 {
	d := make([]float32, len(rows.Targets))
	checkpoint.InParallel(len(d), leastRows, func(from, to int) {
		o.Derivative(d[from:to], rows.Part(from, to))
	})
	return d
}

// loss gives the model the objective's derivatives as soon as what they need is known. learn, if it is not nil, gets
// the log-probabilities that come to the host for that, in the order of rows.
func (t *Trainer) loss(r *parallel.Rank, logprob kernels.Tensor, b batchPart, learn func([]float32)) model.Loss {
	rows := b.Rows
	known := func(from, to int) []float32 {
		own := parallel.Download[float32](r, logprob.ColRange(from, to))
		if learn != nil {
			learn(own)
		}
		return own
	}
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
			return parallel.Upload(r, derivatives(t.Objective, part))
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
				Use: st.Use, Done: st.Done}
			if h := st.Host; h != nil {
				of.Use, of.Done = nil, nil
				of.Host = &optim.HostState{CPU: h.CPU, Master: h.Master, M: h.M, V: h.V, Grad: h.Grad, W: h.W,
					Factor: h.Factor}
			}
			if st.Q != nil {
				of.Encode = func() { m.EncodeState(st) }
			}
			w.States = append(w.States, of)
		}
		ws = append(ws, w)
	}
	return ws
}
