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
	boxes    [][]*box         // likewise
	copies   []*kernels.Arena // empty ones, for gradients of weights that are put off
	clock    *stepClock
}

// passing is a micro-batch in a chunk of blocks.
type passing struct{ chunk, micro int }

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
	last := p.tasks.LastBackward(r.ID)
	for i, task := range p.tasks.Ranks[r.ID] {
		if p.compute(task); i == last && by.last {
			m.SendHeadGrad(r)
		}
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
	p.tasks = schedule.New(t.PipelineSchedule, m.Stages(), len(p.chunks), t.ahead(), micros)
	p.openLanes(r)
	return p
}

// ahead is the forwards that a rank is ahead for each below it.
func (t *Trainer) ahead() int { return max(t.PipelineAhead, 1) }

// streams tells whether log-probabilities are read as soon as they are there: the stack has those of one micro-batch.
func (p *pipeline) streams() bool { return p.tasks.Name == schedule.Stream }

func (p *pipeline) compute(task schedule.Task) {
	p.clock.beginTask(task)
	defer p.clock.endTask()
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
	for _, b := range slices.Concat(p.boxes...) {
		b.clear()
	}
}

// neighbours are the ranks of the blocks before and behind those of a task.
func (p *pipeline) neighbours(r *parallel.Rank) (before, behind int) {
	n := p.m.Stages()
	return (r.ID + n - 1) % n, (r.ID + 1) % n
}

// forward takes a micro-batch to the next rank.
func (p *pipeline) forward(task schedule.Task) {
	st, b := p.chunks[task.Chunk], p.of[task.Micro]
	f := p.begin(task)
	r := f.lane
	before, behind := p.neighbours(r)
	if task.Chunk == 0 {
		r.Count(parallel.Tally{Rows: b.rows()})
	}
	on := b.upload(r)
	on.Dropout = p.m.DropoutAt(p.by.step, p.first[task.Micro]+b.from)
	f.pass = &model.Pass{Batch: on, D: f.box.memory.New(p.m.DType, b.rows(), p.m.Hidden)}
	if !st.First() {
		f.pass.X = f.box.memory.New(p.m.DType, b.rows(), p.m.Hidden)
		f.receive(before, f.pass.X)
		p.clock.arrived()
	}
	if st.Last() {
		if p.streams() {
			p.empty = p.r.Stack.Mark()
			p.done[task.Micro] = MicroBatch{batchPart: b, logprob: p.r.Stack.New(kernels.F32, 1, b.rows())}
		}
		f.pass.LogProb, f.pass.Targets = p.done[task.Micro].logprob, b.targets(r)
		f.pass.Loss = p.t.loss(r, f.pass.LogProb, b, nil)
	}
	st.StepForward(r, f.pass, p.t.Keep)
	if task.Chunk == len(p.chunks)-1 {
		p.m.UseAll(r) // and bring states of the next update
	}
	if !st.Last() {
		f.sent = append(f.sent, f.send(behind, f.pass.X))
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
		p.done[task.Micro].readLater(p.r)()
		p.r.Stack.Release(p.empty)
	}
	if !st.First() {
		f.box.sent = f.send(before, f.pass.D)
	}
}

// weights computes the gradients of weights that the backward of a micro-batch has put off.
func (p *pipeline) weights(task schedule.Task) {
	f := p.inFlight[passing{task.Chunk, task.Micro}]
	f.later.Compute(f.lane)
	p.copies = append(p.copies, f.later.Copies)
	p.end(task)
}
