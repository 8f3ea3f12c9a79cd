package trainer

import (
	"slices"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// part is weights that are clipped by a norm of their own.
type part struct {
	shards []*model.Shard
	ws     []optim.Weights
	clip   kernels.Tensor // F32 [1, 2]: their norm and the factor of their gradients
	update *optim.Update
	norm   func() []float32 // waits for the norm of the gradients; nil: there are none
}

// update takes the optimizer's step, or begins it where it is deferred. norms waits for the norms of the weights'
// gradients and of the indexers', and not for the weights; 0: there are none.
func (t *Trainer) update(r *parallel.Rank, m *model.Model, by stepRates) (norms func() (own, indexers float64)) {
	own, indexers := trained(m)
	parts := [2]part{{shards: own}, {shards: indexers}}
	scales, kept := m.UpdateScales()
	for i, scale := range []float64{by.scale, by.rowScale} {
		p, lr := &parts[i], by.lr
		if len(p.shards) == 0 {
			continue
		}
		if i == 1 {
			lr *= t.IndexerRate
		}
		if p.ws, p.clip = weights(m, p.shards), scales[i]; !kept {
			p.clip = r.Stack.New(kernels.F32, 1, 2)
		}
		p.update = t.Optimizer.Begin(r, p.ws, p.clip, scale, lr, by.step)
		p.norm = parallel.DownloadLater[float32](r, p.clip.ColRange(0, 1))
		if !kept || !t.Defer {
			p.apply(r, m)
		}
	}
	switch {
	case !t.Defer:
		m.FinishUpdate(r)
	case kept && m.Stages() > 0:
		deferOwn(m, parts[0])
	case kept:
		deferParts(m, parts)
	default:
		m.AwaitOwners(r)
	}
	return func() (own, indexers float64) { return parts[0].known(), parts[1].known() }
}

// leastCopied is how many bytes of weights are copied at once: fewer would cost the host more than they hide.
var leastCopied = 32 << 20

// apply updates the weights, and begins to copy those of a few units behind the update of the next.
func (p part) apply(r *parallel.Rank, m *model.Model) {
	units, first, bytes := model.Units(p.shards), 0, 0
	for i, s := range p.shards {
		bytes += s.W.Bytes()
		last := i == len(units)-1
		if !last && (units[i+1] == units[i] || bytes < leastCopied) {
			continue
		}
		if copied := p.update.Apply(r, p.ws[first:i+1]); copied != nil {
			m.AwaitCopy(slices.Min(units[first:i+1]), copied)
		}
		first, bytes = i+1, 0
	}
}

// ahead updates a share of what the rank owns of some weights.
func (p part) ahead(r *parallel.Rank, from, to int, share float64) {
	if from < to {
		p.update.Ahead(r, p.ws[from:to], share)
	}
}

// known is the norm of the gradients.
func (p part) known() float64 {
	if p.norm == nil {
		return 0
	}
	return float64(p.norm()[0])
}

// deferParts leaves the updates to the next step, of both parts one after the other.
func deferParts(m *model.Model, parts [2]part) {
	units := append(model.Units(parts[0].shards), model.Units(parts[1].shards)...)
	n := len(parts[0].ws)
	m.DeferUpdate(units, func(r *parallel.Rank, from, to int) {
		if own := parts[0].ws[min(from, n):min(to, n)]; len(own) > 0 {
			parts[0].update.Apply(r, own).Wait()
		}
		if indexers := parts[1].ws[max(from-n, 0):max(to-n, 0)]; len(indexers) > 0 {
			parts[1].update.Apply(r, indexers).Wait()
		}
	}, func(r *parallel.Rank, from, to int, share float64) { // of weights alone, behind all of which indexers' come
		parts[0].ahead(r, min(from, n), min(to, n), share)
	})
}

// deferOwn leaves the update of what a rank of a pipeline owns to the next step, and copies of it to the end of all
// steps, but for those of an embedding that the last rank has as its head.
func deferOwn(m *model.Model, p part) {
	units, tied := model.Units(p.shards), m.TiesHead()
	m.DeferUpdate(units, func(r *parallel.Rank, from, to int) {
		if tied && from == 0 {
			p.update.Apply(r, p.ws[from:to]).Wait()
		} else {
			p.update.ApplyOwn(r, p.ws[from:to])
		}
	}, p.ahead)
	m.LeaveShares(func(r *parallel.Rank) { optim.Share(r, p.ws).Wait() })
}

// Finish ends the last step's update, on all ranks. After [Options.Defer] it comes before weights are read by anything
// but a step.
func (t *Trainer) Finish() {
	if t.Model.Deferred() {
		t.eachRank(func(r *parallel.Rank, m *model.Model) { m.FinishUpdate(r) })
	}
}
