package model

import (
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// shardedWeights are the weights of blocks that several ranks hold together, each whole matrices of every block, as one
// of the ranks computes with them (FSDP, Zhao et al., arXiv 2304.11277). It copies those of a block from their owners
// into one of two slots while the block before computes. Owners need not take part: they change weights only when a
// step ends. Embedding, final norm, head and adapters are not cut.
type shardedWeights struct {
	dev    kernels.Transfers      // nil: a plan, which copies nothing
	blocks [][][]kernels.PeerCopy // of each block, by the rank that has the weights
	slots  [2]weightSlot
}

// weightHome is consecutive matrices of a weight in the memory of the rank that owns them.
type weightHome struct {
	owner int
	dev   kernels.Device
	t     kernels.Tensor           // their shape alone where q is not nil
	q     *kernels.QuantizedWeight // nil: numbers
}

// newHome is a home for some matrices of a weight, without memory.
func (p *Param) newHome(owner int, dev kernels.Device, matrices int) weightHome {
	h := weightHome{owner: owner, dev: dev, t: described(p.W.DType, matrices, p.W.Rows, p.W.Cols)}
	if p.Q != nil {
		q := kernels.NewQuantizedWeight(p.Q.Format, p.Q.DType, matrices, p.Q.Rows, p.Q.Cols, described)
		h.q = &q
	}
	return h
}

// weightSlot is memory for the weights of a block. Blocks of even number have the first slot.
type weightSlot struct {
	holds  int             // 1 + the block whose weights it holds, or will when the copies are done; 0: none
	copies []kernels.Event // that have not been waited for
}

// use waits for the weights of a block, and begins to copy those of the block that is to compute after it, where there
// is one.
func (w *shardedWeights) use(r *parallel.Rank, block, next int) {
	switch {
	case w == nil:
		return
	case w.dev == nil:
		w.count(r, block)
		return
	}
	r.Yield() // lanes enter a block together: none is at the block whose slot is filled
	w.gather(block)
	s := &w.slots[block%2]
	w.dev.WaitEvents(s.copies...)
	s.copies = nil
	if next >= 0 && next < len(w.blocks) {
		w.gather(next)
	}
}

// count is use in a plan: it counts what is copied.
func (w *shardedWeights) count(r *parallel.Rank, block int) {
	s := &w.slots[block%2]
	if s.holds == 1+block {
		return
	}
	s.holds = 1 + block
	bytes := 0
	for owner, copies := range w.blocks[block] {
		for _, c := range copies {
			if owner != r.ID {
				bytes += c.Dst.Bytes()
			}
		}
	}
	kernels.CountExchange(r.Dev, kernels.ExchangeWeights, bytes)
}

// gather begins to copy the weights of a block to its slot, whose other block has been computed.
func (w *shardedWeights) gather(block int) {
	s := &w.slots[block%2]
	if s.holds == 1+block {
		return
	}
	after := append(slices.Clone(s.copies), w.dev.Record())
	s.holds, s.copies = 1+block, nil
	for _, copies := range w.blocks[block] {
		if len(copies) > 0 {
			s.copies = append(s.copies, w.dev.CopyPeer(after, copies...))
		}
	}
}

// drop forgets the weights in the slots, before their owners change them.
func (w *shardedWeights) drop() {
	if w == nil {
		return
	}
	for i := range w.slots {
		if w.dev != nil {
			w.dev.WaitEvents(w.slots[i].copies...)
		}
		w.slots[i] = weightSlot{}
	}
}

// Cut tells whether some weights are cut over ranks, so that none has the whole model.
func (m *Model) Cut() bool {
	return slices.ContainsFunc(m.Params, func(p *Param) bool { return p.home != nil })
}

// Placement says what each of several ranks has of the weights.
func (m *Model) Placement() string {
	switch experts := m.ExpertParallel(); {
	case experts && m.sharded != nil:
		return "experts divided and other weights sharded"
	case experts:
		return "experts divided"
	case m.sharded != nil:
		return "weights sharded"
	}
	return "weights replicated"
}

// cut gives weights homes in the memory of ranks, as the options say.
func (m *Model) cut(o Options) error {
	for i, l := range m.mixtures() {
		l.place = i
	}
	if o.home != nil {
		for i, p := range m.Params {
			p.home, p.split = o.home.Params[i].home, o.home.Params[i].split
		}
		return nil
	}
	if len(o.Ranks) < 2 {
		return nil
	}
	if o.Experts {
		if err := m.cutExperts(o.Ranks); err != nil {
			return err
		}
	}
	if o.Blocks {
		m.cutBlocks(o.Ranks)
	}
	memory, bytes := make([]*kernels.Arena, len(o.Ranks)), make([]int, len(o.Ranks))
	each := func(visit func(h *weightHome)) {
		for _, p := range m.Params {
			for i := range p.home {
				visit(&p.home[i])
			}
		}
	}
	each(func(h *weightHome) { bytes[h.owner] += storageBytes(h.t, h.q) })
	for i, dev := range o.Ranks {
		memory[i] = kernels.NewArena(dev)
		memory[i].Reserve(bytes[i])
	}
	each(func(h *weightHome) {
		allocateStorage(memory[h.owner], &h.t, h.q)
	})
	return nil
}

// cutBlocks cuts the weights of blocks. A block's matrices go to the ranks in order, in parts of about one size; which
// rank is the first differs from block to block, so that parts which cannot be equal, of few large matrices, even out.
func (m *Model) cutBlocks(ranks []kernels.Device) {
	for block, list := range m.blockParams() {
		for _, part := range cutMatrices(list, func(p *Param) int { return aligned(p.Elements()) }, len(ranks)) {
			p, owner := part.param, (part.owner+block)%len(ranks)
			p.home = append(p.home, p.newHome(owner, ranks[owner], part.groups))
		}
	}
}

// blockParams lists the parameters of each block, but for experts that are cut over ranks.
func (m *Model) blockParams() [][]*Param {
	list := make([][]*Param, len(m.Blocks))
	for _, p := range m.Params {
		if p.unit != embeddingUnit && p.unit != m.headUnit() && !p.split {
			list[p.unit-blockUnit(0)] = append(list[p.unit-blockUnit(0)], p)
		}
	}
	return list
}

// allocateSlots makes the slots: the weights of all blocks of even number, and of all of odd number, lie over one
// another.
func (m *Model) allocateSlots() {
	w := &shardedWeights{blocks: make([][][]kernels.PeerCopy, len(m.Blocks))}
	w.dev, _ = m.dev.(kernels.Transfers)
	var largest [2]int
	for block, list := range m.blockParams() {
		largest[block%2] = max(largest[block%2], weightBytes(list))
	}
	var slots [2]*kernels.Arena
	for i := range slots {
		slots[i] = kernels.NewArena(m.dev)
		slots[i].Reserve(largest[i])
	}
	for block, list := range m.blockParams() {
		slot := slots[block%2]
		first := slot.Mark()
		for _, p := range list {
			p.allocate(slot)
			at := 0
			for _, h := range p.home {
				for len(w.blocks[block]) <= h.owner {
					w.blocks[block] = append(w.blocks[block], nil)
				}
				of := &w.blocks[block][h.owner]
				for i, own := range p.tensors() {
					home := tensorsOf(h.t, h.q)[i]
					*of = append(*of, kernels.PeerCopy{Dst: matricesOf(own, at, h.t.Groups), Src: home})
				}
				at += h.t.Groups
			}
		}
		slot.Release(first)
	}
	m.sharded = w
}

// weightBytes is the memory of weights in an arena.
func weightBytes(list []*Param) (bytes int) {
	for _, p := range list {
		bytes += storageBytes(p.W, p.Q)
	}
	return bytes
}
