package trainer

import (
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
)

// pipeline is a rank's part of a step whose micro-batches pass the ranks one after the other, each of which has some
// blocks of the model.
type pipeline struct {
	t     *Trainer
	m     *model.Model
	st    model.Stage
	by    stepRates
	tasks schedule.Schedule
	of    []batchPart // the micro-batches
	first []int       // row of the step of each
	done  []MicroBatch
	ways  map[int]*way // by micro-batch
	free  []*way       // whose micro-batch has gone back, the first to do so first
}

// way is a micro-batch on its way through the rank, and the lane that has its memory: the first to come is the first to
// go, which no stack can do.
type way struct {
	lane  *parallel.Rank
	empty kernels.Mark
	ready []kernels.Event // the lane's memory may be written by copies; nil: a plan
	pass  *model.Pass
	sent  []*parallel.Exchange // of the lane's memory, that the other ranks may not have taken
}

// pipeline computes the tasks of a rank. It returns the micro-batches whose log-probabilities lie on its stack.
func (t *Trainer) pipeline(r *parallel.Rank, m *model.Model, by stepRates, micros []batchPart, done []MicroBatch) (
	own []int) {
	m.UseAll(r)
	p := pipeline{t: t, m: m, st: m.PipelineStage(r.ID), by: by, of: micros, done: done, ways: map[int]*way{},
		tasks: schedule.New(t.Pipeline, m.Stages(), len(micros))}
	row := 0
	for i, b := range micros {
		p.first = append(p.first, row)
		row += b.rows()
		if p.st.Last() {
			own = append(own, i)
			done[i] = MicroBatch{batchPart: b, logprob: r.Stack.New(kernels.F32, 1, b.rows())}
		}
	}
	for _, lane := range r.Lanes(1 + p.tasks.InFlight(r.ID))[1:] {
		p.free = append(p.free, &way{lane: lane, empty: lane.Stack.Mark()})
	}
	for _, task := range p.tasks.Ranks[r.ID] {
		if task.Kind == schedule.Forward {
			p.forward(task)
		} else {
			p.backward(task)
		}
	}
	for _, w := range p.free {
		w.clear()
	}
	return own
}

// clear empties the lane, when the other ranks have taken what was sent from it.
func (w *way) clear() {
	for _, x := range w.sent {
		x.Wait()
	}
	w.lane.Stack.Release(w.empty)
	w.sent, w.pass, w.ready = nil, nil, nil
	if w.lane.Data != nil {
		w.ready = []kernels.Event{w.lane.Transfers.Record()}
	}
}

// forward takes a micro-batch to the next rank.
func (p *pipeline) forward(task schedule.Task) {
	w, b := p.free[0], p.of[task.Micro]
	p.free = p.free[1:]
	p.ways[task.Micro] = w
	w.clear()
	r := w.lane
	r.Count(parallel.Tally{Rows: b.rows()})
	on := b.upload(r)
	on.Dropout = p.m.DropoutAt(p.by.step, p.first[task.Micro]+b.from)
	w.pass = &model.Pass{Batch: on, D: r.Stack.New(p.m.DType, b.rows(), p.m.Hidden)}
	if !p.st.First() {
		w.pass.X = r.Stack.New(p.m.DType, b.rows(), p.m.Hidden)
		w.receive(r.ID-1, w.pass.X)
	}
	if p.st.Last() {
		w.pass.LogProb, w.pass.Targets = p.done[task.Micro].logprob, b.targets(r)
		w.pass.Loss = p.t.loss(r, w.pass.LogProb, b)
	}
	p.st.StepForward(r, w.pass, p.t.Keep)
	if !p.st.Last() {
		w.send(r.ID+1, w.pass.X)
	}
}

// backward takes the gradient of a micro-batch's rows to the rank before.
func (p *pipeline) backward(task schedule.Task) {
	w := p.ways[task.Micro]
	delete(p.ways, task.Micro)
	if !p.st.Last() {
		w.receive(w.lane.ID+1, w.pass.D)
	}
	p.st.StepBackward(w.lane, w.pass)
	if !p.st.First() {
		w.send(w.lane.ID-1, w.pass.D)
	}
	p.free = append(p.free, w)
}

// receive brings rows of another rank, or their gradients, and makes what is enqueued next wait for them.
func (w *way) receive(from int, t kernels.Tensor) {
	if w.lane.Data != nil {
		w.lane.Data.Receive(from, t, w.ready...).Wait()
	}
}

// send offers what has been computed to another rank. It waits for nothing.
func (w *way) send(to int, t kernels.Tensor) {
	if w.lane.Data != nil {
		w.sent = append(w.sent, w.lane.Data.Send(to, t, w.lane.Transfers.Record()))
	}
}
