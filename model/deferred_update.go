package model

import (
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// deferredUpdate is what is left of an optimizer's step when the next one begins. The weights of a unit are updated
// before the next forward computes with them, so that states which pass through the device from the host's memory do
// so behind the forward of the units before. All ranks defer alike and update unit by unit, in one order; ranks of a
// pipeline update what they own alone, of which the others get copies when the update is finished.
type deferredUpdate struct {
	units []int // of the weights that are updated, in order
	apply func(r *parallel.Rank, from, to int)
	ahead func(r *parallel.Rank, from, to int, share float64) // of what the rank owns
	next  int                                                 // the first weights that have not been updated
	unit  int                                                 // the first unit that has not been
}

// updatedCopy is a copy of updated weights from their owners that has begun.
type updatedCopy struct {
	unit int // the first that computes with the weights
	copy *parallel.Exchange
}

// AwaitCopy makes the next forward wait for a copy of updated weights before it computes with a unit. All else that
// reads weights comes after [Model.FinishUpdate].
func (m *Model) AwaitCopy(unit int, copy *parallel.Exchange) {
	m.copies = append(m.copies, updatedCopy{unit, copy})
}

// awaitCopies holds what a rank computes next until the weights of all units up to one are there.
func (m *Model) awaitCopies(unit int) {
	m.copies = slices.DeleteFunc(m.copies, func(c updatedCopy) bool {
		if c.unit <= unit {
			c.copy.Wait()
		}
		return c.unit <= unit
	})
}

// UpdateScales is memory for the norms and factors of two updates, of weights and of indexers, F32 [1, 2] each. They
// outlive a step. Only a model whose optimizer's state is in the host's memory has it.
func (m *Model) UpdateScales() (list [2]kernels.Tensor, ok bool) {
	return m.scales, m.offload.Optimizer
}

// Units are those of shards' parameters.
func Units(shards []*Shard) (units []int) {
	for _, s := range shards {
		units = append(units, s.Param.unit)
	}
	return units
}

// DeferUpdate leaves an update of weights of some units to the next [Model.Step], whose forward updates each unit
// before it computes with it: apply gets ranges of the weights, in order, and updates what ahead has left of them.
// ahead gets a range before that, with growing shares of what the rank owns, between passes of the unit before. What
// else reads weights comes after [Model.FinishUpdate].
func (m *Model) DeferUpdate(units []int, apply func(r *parallel.Rank, from, to int),
	ahead func(r *parallel.Rank, from, to int, share float64)) {
	m.deferred = &deferredUpdate{units: units, apply: apply, ahead: ahead}
}

// LeaveShares leaves it to [Model.FinishUpdate] to copy updated weights from their owners to all ranks: steps of a
// pipeline compute with those of their owners.
func (m *Model) LeaveShares(share func(r *parallel.Rank)) { m.share = share }

// Deferred tells whether an update, or a copy of its weights, is left.
func (m *Model) Deferred() bool { return m.deferred != nil || len(m.copies) > 0 || m.share != nil }

// TiesHead tells whether the head is the embedding, and is trained: of a pipeline the last rank then computes with a
// copy of what the first one owns.
func (m *Model) TiesHead() bool {
	return slices.ContainsFunc(m.Shards, func(s *Shard) bool { return m.tied(s.Param) })
}

// UseEmbedding updates what has been deferred of the embedding.
func (m *Model) UseEmbedding(r *parallel.Rank) { m.useUnit(r, embeddingUnit) }

// through updates all weights up to those of a unit, and tells whether they are the last.
func (u *deferredUpdate) through(r *parallel.Rank, m *Model, unit int) (done bool) {
	for ; u.unit <= unit; u.unit++ {
		if to := u.end(); to > u.next {
			u.apply(r, u.next, to)
			u.next = to
			if m.stages == nil {
				m.AwaitOwners(r)
			}
		}
	}
	return u.unit > m.headUnit()
}

// end is behind the last weights of the unit.
func (u *deferredUpdate) end() int {
	to := u.next
	for i := u.next; i < len(u.units); i++ {
		if u.units[i] == u.unit {
			to = i + 1
		}
	}
	return to
}

// updateAhead updates as large a share of the next unit as passes of a share of the step have computed a block, so that
// its states come and go behind the passes that follow. No pass of the step has read the unit's weights, and all that
// read them in the step before was over when its gradients were. The rest, and copies of other ranks' weights, come
// with the unit.
func (m *Model) updateAhead(r *parallel.Rank, computed, passes int) {
	if u := m.deferred; u != nil && computed < passes {
		u.ahead(r, u.next, u.end(), float64(computed)/float64(passes))
	}
}

// AwaitOwners holds what a rank computes next until the owners have changed weights that are cut over ranks.
func (m *Model) AwaitOwners(r *parallel.Rank) {
	if m.sharded != nil && r.Data != nil {
		r.Data.Barrier()
	}
}

// useUnit updates what has been deferred of the weights of a unit, which are to be computed with, and waits for copies
// of those that have been updated. Behind the last one it begins to bring the states of the next update.
func (m *Model) useUnit(r *parallel.Rank, unit int) {
	m.awaitCopies(unit)
	if m.deferred != nil && m.deferred.through(r, m, unit) {
		m.deferred = nil
		m.ring.Finish()
		m.ring.Fetch()
	}
}

// useBlock is useUnit of a block, and of the one after it where its weights are copied from their owners by then.
func (m *Model) useBlock(r *parallel.Rank, block int) {
	if m.sharded != nil && m.stages == nil {
		block = min(block+1, len(m.Blocks)-1)
	}
	m.useUnit(r, blockUnit(block))
}

// UseAll updates all that has been deferred, in a rank that computes nothing more of the next step, or nothing yet.
func (m *Model) UseAll(r *parallel.Rank) { m.useUnit(r, m.headUnit()) }

// FetchStates begins to bring what the next update needs from the host's memory, unless one is deferred: then that is
// first.
func (m *Model) FetchStates() {
	if m.deferred == nil {
		m.ring.Fetch()
	}
}

// FinishUpdate ends an update: what has been deferred of it is applied, states go back to the host's memory, and what a
// rank computes next waits for the owners of weights that are cut over ranks.
func (m *Model) FinishUpdate(r *parallel.Rank) {
	m.awaitCopies(m.headUnit())
	if m.deferred != nil {
		m.deferred.through(r, m, m.headUnit())
		m.deferred = nil
	}
	m.ring.Finish()
	if m.share != nil {
		m.share(r)
		m.share = nil
	}
	m.AwaitOwners(r)
}

// mustBeUpdated panics where weights or states are to be read of which an update is deferred.
func (m *Model) mustBeUpdated() {
	if m.Deferred() {
		panic("model: weights are read whose update is deferred")
	}
}
