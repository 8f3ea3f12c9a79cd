package trainer

import (
	"slices"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
)

// pipeline is a rank's part of a step whose micro-batches pass the ranks one after the other, each of which has some
// blocks of the model.
type pipeline struct {
	t        *Trainer
	r        *parallel.Rank
	m        *model.Model
	chunks   []model.Stage // that the rank has
	by       portion
	tasks    schedule.Schedule
	of       []batchPart // the micro-batches
	first    []int       // row of the step of each
	done     []MicroBatch
	empty    kernels.Mark // of the rank's stack, before log-probabilities of a stream
	inFlight map[passing]*inFlight
	free     [][]*inFlight    // by chunk: that have no micro-batch any more, the first to end first
	copies   []*kernels.Arena // empty ones, for gradients of weights that are put off
	clock    *taskClock
}

// passing is a micro-batch in a chunk of blocks.
type passing struct{ chunk, micro int }

// inFlight is a micro-batch between a chunk's forward and its gradients, and the lane that has its memory: the first to
// come is the first to go, which no stack can do.
type inFlight struct {
	lane  *parallel.Rank
	empty kernels.Mark
	ready []kernels.Event // the lane's memory may be written by copies; nil: a plan
	pass  *model.Pass
	sent  []*parallel.Exchange // of the lane's memory, that the other ranks may not have taken
	later *parallel.WeightGrads
}

// runPipeline computes the tasks of a rank. It returns the micro-batches whose log-probabilities lie on its stack.
func (t *Trainer) runPipeline(r *parallel.Rank, m *model.Model, by portion, micros []batchPart, done []MicroBatch) (
	own []int) {
	p := t.openPipeline(r, m, by, len(micros))
	p.of, p.done = micros, done
	row := by.row
	for i, b := range micros {
		p.first = append(p.first, row)
		row += b.rows()
		if r.ID == m.Stages()-1 && !p.streams() {
			own = append(own, i)
			done[i] = MicroBatch{batchPart: b, logprob: r.Stack.New(kernels.F32, 1, b.rows())}
		}
	}
	for _, task := range p.tasks.Ranks[r.ID] {
		p.compute(task)
	}
	p.close()
	return own
}

// openPipeline prepares a rank for so many micro-batches; of a stream, for any number from as many as there are stages.
func (t *Trainer) openPipeline(r *parallel.Rank, m *model.Model, by portion, micros int) *pipeline {
	if m.TiesHead() {
		m.UseEmbedding(r) // on all ranks
	}
	if !m.PipelineStages(r.ID)[0].First() {
		m.UseAll(r) // of a deferred update, while rows are on their way; the first rank leaves it to its forward
	}
	p := &pipeline{t: t, r: r, m: m, chunks: m.PipelineStages(r.ID), by: by, inFlight: map[passing]*inFlight{},
		clock: t.clock(r)}
	p.tasks = schedule.New(t.PipelineSchedule, m.Stages(), len(p.chunks), micros)
	p.openLanes(r)
	return p
}

// streams tells whether log-probabilities are read as soon as they are there: the stack has those of one micro-batch.
func (p *pipeline) streams() bool { return p.tasks.Name == schedule.Stream }

func (p *pipeline) compute(task schedule.Task) {
	p.clock.begin(task)
	defer p.clock.end()
	switch task.Kind {
	case schedule.Forward:
		p.forward(task)
	case schedule.Backward:
		p.backward(task)
	case schedule.Weights:
		p.weights(task)
	}
}

// close empties the lanes, when all has been computed and what was sent has been taken.
func (p *pipeline) close() {
	for _, f := range slices.Concat(p.free...) {
		f.clear()
	}
}

// openLanes gives each chunk as many lanes as it has micro-batches in flight, and gradients that are put off their
// arenas. The rank's own stack has what stays for the step.
func (p *pipeline) openLanes(r *parallel.Rank) {
	last := 1
	more := func(n int) []*parallel.Rank {
		last += n
		return r.Lanes(last)[last-n:]
	}
	for i := range p.chunks {
		var free []*inFlight
		for _, lane := range more(p.tasks.InFlight(r.ID, i)) {
			free = append(free, &inFlight{lane: lane, empty: lane.Stack.Mark()})
		}
		p.free = append(p.free, free)
	}
	for _, lane := range more(p.tasks.InWaiting(r.ID)) {
		p.copies = append(p.copies, lane.Stack)
	}
}

// neighbours are the ranks of the blocks before and behind those of a task.
func (p *pipeline) neighbours(r *parallel.Rank) (before, behind int) {
	n := p.m.Stages()
	return (r.ID + n - 1) % n, (r.ID + 1) % n
}

// clear empties the lane, when the other ranks have taken what was sent from it.
func (f *inFlight) clear() {
	for _, x := range f.sent {
		x.Wait()
	}
	f.lane.Stack.Release(f.empty)
	f.sent, f.pass, f.later, f.ready = nil, nil, nil, nil
	if f.lane.Data != nil {
		f.ready = []kernels.Event{f.lane.Transfers.Record()}
	}
}

// forward takes a micro-batch to the next rank.
func (p *pipeline) forward(task schedule.Task) {
	st, free, b := p.chunks[task.Chunk], &p.free[task.Chunk], p.of[task.Micro]
	f := (*free)[0]
	*free = (*free)[1:]
	p.inFlight[passing{task.Chunk, task.Micro}] = f
	f.clear()
	r := f.lane
	before, behind := p.neighbours(r)
	if task.Chunk == 0 {
		r.Count(parallel.Tally{Rows: b.rows()})
	}
	on := b.upload(r)
	on.Dropout = p.m.DropoutAt(p.by.step, p.first[task.Micro]+b.from)
	f.pass = &model.Pass{Batch: on, D: r.Stack.New(p.m.DType, b.rows(), p.m.Hidden)}
	if !st.First() {
		f.pass.X = r.Stack.New(p.m.DType, b.rows(), p.m.Hidden)
		f.receive(before, f.pass.X)
		p.clock.arrived()
	}
	if st.Last() {
		if p.streams() {
			p.empty = p.r.Stack.Mark()
			p.done[task.Micro] = MicroBatch{batchPart: b, logprob: p.r.Stack.New(kernels.F32, 1, b.rows())}
		}
		f.pass.LogProb, f.pass.Targets = p.done[task.Micro].logprob, b.targets(r)
		f.pass.Loss = p.t.loss(r, f.pass.LogProb, b)
	}
	st.StepForward(r, f.pass, p.t.Keep)
	if task.Chunk == len(p.chunks)-1 {
		p.m.UseAll(r) // and bring states of the next update
	}
	if !st.Last() {
		f.send(behind, f.pass.X)
	}
}

// backward takes the gradient of a micro-batch's rows to the rank before.
func (p *pipeline) backward(task schedule.Task) {
	st, f := p.chunks[task.Chunk], p.inFlight[passing{task.Chunk, task.Micro}]
	before, behind := p.neighbours(f.lane)
	if !st.Last() {
		f.receive(behind, f.pass.D)
		p.clock.arrived()
	}
	if p.tasks.PutsOff() {
		f.later = f.lane.PutOff(p.copies[0], func() { st.StepBackward(f.lane, f.pass) })
		p.copies = p.copies[1:]
	} else {
		st.StepBackward(f.lane, f.pass)
		p.end(task)
	}
	if st.Last() && p.streams() {
		p.done[task.Micro].read(p.r)
		p.r.Stack.Release(p.empty)
	}
	if !st.First() {
		f.send(before, f.pass.D)
	}
}

// weights computes the gradients of weights that the backward of a micro-batch has put off.
func (p *pipeline) weights(task schedule.Task) {
	f := p.inFlight[passing{task.Chunk, task.Micro}]
	f.later.Compute(f.lane)
	p.copies = append(p.copies, f.later.Copies)
	p.end(task)
}

// end gives the lane of a micro-batch back.
func (p *pipeline) end(task schedule.Task) {
	at := passing{task.Chunk, task.Micro}
	p.free[task.Chunk] = append(p.free[task.Chunk], p.inFlight[at])
	delete(p.inFlight, at)
}

// receive brings rows of another rank, or their gradients, and makes what is enqueued next wait for them.
func (f *inFlight) receive(from int, t kernels.Tensor) {
	kernels.CountExchange(f.lane.Dev, kernels.ExchangeStages, t.Bytes())
	if f.lane.Data != nil {
		f.lane.Data.Receive(from, t, f.ready...).Wait()
	}
}

// send offers what has been computed to another rank. It waits for nothing.
func (f *inFlight) send(to int, t kernels.Tensor) {
	if f.lane.Data != nil {
		f.sent = append(f.sent, f.lane.Data.Send(to, t, f.lane.Transfers.Record()))
	}
}
