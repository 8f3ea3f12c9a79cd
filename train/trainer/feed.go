package trainer

import (
	"errors"
	"fmt"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Feed is one optimizer step whose packs come one after the other, as their samples do. What is put is computed at
// once: forward and backward, so that its log-probabilities are there long before the step is. Nothing that a pack's
// backward needs depends on the packs that follow: what divides all rows of a step alike is the optimizer's, and
// gradients are sums over segments in the order of packs. So the step has the bits of [Trainer.Step] on all packs,
// however they come. Weights change in Close alone; between two calls, other work may compute with them.
//
// A Feed that has a pack has to be closed before the next step begins.
type Feed struct {
	t      *Trainer
	known  func(b *Batch)
	step   int
	rows   int  // of the packs so far
	lists  int  // that samples have, see lists; below 0: none has come
	begun  bool // a portion has been computed
	closed bool
	res    StepResult

	stream   *stream     // that passes a pipeline; nil: none
	streamed []*streamed // micro-batches that have passed one
}

// Feed begins an optimizer step, counted from 1. known gets each micro-batch with its log-probabilities as soon as all
// of its ranks have them, in the order of packs; it may be nil. It must not use the trainer: a goroutine of some rank
// may call it, while devices compute.
func (t *Trainer) Feed(step int, known func(b *Batch)) *Feed {
	return &Feed{t: t, known: known, step: step, lists: -1}
}

// Step takes one optimizer step, counted from 1, on a global batch: a [Feed] that gets everything at once. No bit
// depends on how its packs are grouped into micro-batches, or dealt to ranks. Everything is enqueued before the first
// result is read, except for objectives whose derivative needs log-probabilities: the host waits for the device once a
// step. A batch that cannot be computed, like a rank that fails, is a [kernels.Fault].
func (t *Trainer) Step(step int, batch GlobalBatch) StepResult {
	res, err := t.Feed(step, nil).Close(batch.Scale, batch.Packs...)
	if err != nil {
		panic(kernels.Fault{Err: err})
	}
	return res
}

// Put adds packs to the step and computes them, as micro-batches of their own. It returns when their log-probabilities
// are known; where micro-batches stream through a pipeline, when the first rank has done what it may without waiting,
// as it does also in a Put of no packs. A pack that cannot be computed is an error that names it: then none of these
// packs is put, and those before are as they were. A rank that fails is a [kernels.Fault].
func (f *Feed) Put(packs ...[]Sample) error {
	if err := f.admit(packs); err != nil {
		return err
	}
	f.compute(packs, stepRates{step: f.step}, false)
	return nil
}

// Close computes the packs that are left, and takes the optimizer's step on all that were put, with the scale of their
// loss; see [GlobalBatch]. Packs that cannot be computed are an error, as in Put, and so is a step without packs: then
// no step is taken, and the Feed is open as before.
func (f *Feed) Close(scale float64, packs ...[]Sample) (StepResult, error) {
	if err := f.admit(packs); err != nil {
		return StepResult{}, err
	}
	rows := f.rows + CountRows(packs)
	if rows == 0 {
		return StepResult{}, fmt.Errorf("step %d has no packs", f.step)
	}
	f.closed, f.t.open = true, nil
	f.res.LR = f.t.Schedule.At(f.step)
	by := stepRates{step: f.step, scale: scale, lr: f.res.LR, rowScale: 1 / float64(rows)}
	f.compute(packs, by, true)
	f.res.Tokens = rows
	f.res.Loss *= scale
	f.res.IndexerLoss *= by.rowScale
	return f.res, nil
}

// admit returns why packs cannot join the step; nil: the step is the one that is open if it has any.
func (f *Feed) admit(packs [][]Sample) error {
	if f.closed {
		return fmt.Errorf("step %d has been closed", f.step)
	}
	if open := f.t.open; open != nil && open != f {
		return fmt.Errorf("step %d cannot begin, step %d has packs and has to be closed first", f.step, open.step)
	}
	have := f.lists
	for i, pack := range packs {
		for n := range pack {
			if err := f.check(&pack[n]); err != nil {
				f.lists = have
				return fmt.Errorf("pack %d, sample %d: %w", i, n, err)
			}
		}
	}
	if CountRows(packs) > 0 {
		f.t.open = f
	}
	return nil
}

// compute takes a portion of the step through the model on all ranks, and updates behind the last one.
func (f *Feed) compute(packs [][]Sample, by stepRates, last bool) {
	t := f.t
	if t.streams() {
		f.pass(packs, by)
		packs = nil
	}
	micros := t.microBatches(packs)
	places := dealt(micros, t.Context, t.Rank.Dev.Definition().Segment)
	if len(places) == 0 && !last {
		return
	}
	done := make([]MicroBatch, len(places))
	known := f.measures(done, places)
	w := portion{stepRates: by, row: f.rows, first: !f.begun, last: last, known: known.add}
	f.rows, f.begun = f.rows+CountRows(packs), true
	t.eachRank(func(r *parallel.Rank, m *model.Model) {
		norm, indexerNorm := t.rankStep(r, m, w, micros, places, done)
		if r.ID == 0 {
			f.res.Norm, f.res.IndexerNorm = norm, indexerNorm
		}
	})
	for _, b := range f.streamed {
		b.Rows.LogProb = b.known
		f.measure(b.Batch)
	}
	known.all()
	for i := range done {
		done[i].diverge(&f.res.IndexerLoss)
	}
}

// measures hands out and measures the micro-batches of a portion, each when the log-probabilities of all its parts are
// known.
func (f *Feed) measures(done []MicroBatch, places []place) *inOrder {
	o := newInOrder(len(places), func(i int) {
		if places[i] == hole || !joined(done, places, i) {
			return
		}
		if f.known != nil {
			f.known(done[i].Batch)
		}
		f.measure(done[i].Batch)
	})
	for i, p := range places {
		if p == hole {
			o.add(i)
		}
	}
	return o
}

// measure adds a micro-batch whose log-probabilities are known to the results.
func (f *Feed) measure(b *Batch) {
	f.t.Objective.Measure(&f.res.Measures, b.Rows)
	if f.t.Observe != nil {
		f.t.Observe(b)
	}
}

// check returns why a sample cannot be computed, nil: it can.
func (f *Feed) check(s *Sample) error {
	n, m := len(s.IDs), f.t.Model
	switch {
	case n == 0:
		return errors.New("has no tokens")
	case n > m.MaxLength:
		return fmt.Errorf("has %d tokens, and the model takes %d", n, m.MaxLength)
	case len(s.Targets) != n:
		return fmt.Errorf("has %d targets for %d tokens", len(s.Targets), n)
	}
	for i, id := range s.IDs {
		if id < 0 || int(id) >= m.Vocab || int(s.Targets[i]) >= m.Vocab {
			return fmt.Errorf("row %d: token %d, target %d, and the vocabulary has %d", i, id, s.Targets[i], m.Vocab)
		}
	}
	have := 0
	for k, list := range [][]float32{s.Weight, s.Rollout, s.Old, s.Reference, s.Advantage, s.Inverse} {
		if len(list) > 0 {
			have |= 1 << k
		}
		if len(list) > 0 && len(list) != n {
			return fmt.Errorf("a list has %d values for %d tokens", len(list), n)
		}
	}
	if f.lists >= 0 && have != f.lists {
		return errors.New("has other lists of values than the samples before")
	}
	f.lists = have
	return nil
}
