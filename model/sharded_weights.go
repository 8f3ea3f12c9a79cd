package model

import (
	"fmt"
	"math"
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
)

// shardedWeights are the weights of blocks that lie elsewhere than where a rank computes with them: several ranks hold
// them together, each whole matrices of every block (FSDP, Zhao et al., arXiv 2304.11277), or the host has them. It
// copies those of a block into one of two slots while the blocks before compute. Owners need not take part: they change
// weights only when a step ends. Embedding, final norm, head and adapters are not cut.
type shardedWeights struct {
	dev    kernels.Transfers // nil: a plan, which copies nothing
	blocks []copiedBlock
	slots  [2]weightSlot
	staged bool // the blocks of a pipeline's stage are here, and nothing is copied while they compute
}

// copiedBlock is what is copied of a block's weights, and which slot it goes to; from nowhere: they are here.
type copiedBlock struct {
	from []weightSource
	slot int
}

// weightSource is copies from one memory.
type weightSource struct {
	owner  int  // the rank that has it
	host   bool // the host does
	copies []kernels.PeerCopy
}

// weightHome is consecutive matrices of a weight in the memory of the rank that owns them.
type weightHome struct {
	owner int
	dev   kernels.Device           // of that rank
	host  bool                     // they lie in memory of the host that is pinned for it
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

// weightSlot is memory for the weights of a block. Blocks that are copied take the slots alternately.
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
	if w.copied(block) {
		w.gather(r, block)
		s := w.slot(block)
		w.dev.WaitEvents(s.copies...)
		s.copies = nil
	} else if w.staged {
		return
	}
	for step := next - block; next >= 0 && next < len(w.blocks); next += step {
		if w.copied(next) {
			w.gather(r, next)
			return
		}
	}
}

func (w *shardedWeights) copied(block int) bool { return len(w.blocks[block].from) > 0 }

func (w *shardedWeights) slot(block int) *weightSlot { return &w.slots[w.blocks[block].slot] }

// count is use in a plan: it counts what is copied.
func (w *shardedWeights) count(r *parallel.Rank, block int) {
	s := w.slot(block)
	if !w.copied(block) || s.holds == 1+block {
		return
	}
	s.holds = 1 + block
	owners, host := w.blocks[block].bytes(r.ID)
	kernels.CountExchange(r.Dev, kernels.ExchangeWeights, owners)
	kernels.CountExchange(r.Dev, kernels.ExchangeHostWeights, host)
}

// bytes is what is copied of a block to a rank from other ranks, and from the host.
func (b copiedBlock) bytes(rank int) (owners, host int) {
	for _, from := range b.from {
		for _, c := range from.copies {
			switch {
			case from.host:
				host += c.Dst.Bytes()
			case from.owner != rank:
				owners += c.Dst.Bytes()
			}
		}
	}
	return owners, host
}

// gather begins to copy the weights of a block to its slot, whose other block has been computed.
func (w *shardedWeights) gather(r *parallel.Rank, block int) {
	s := w.slot(block)
	if s.holds == 1+block {
		return
	}
	after := append(slices.Clone(s.copies), w.dev.Record())
	s.holds, s.copies = 1+block, nil
	for _, from := range w.blocks[block].from {
		s.copies = append(s.copies, w.dev.CopyPeer(after, from.copies...))
	}
	_, host := w.blocks[block].bytes(r.ID)
	r.Count(parallel.Tally{FromHost: host})
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
func (m *Model) Placement() (text string) {
	sharded := slices.ContainsFunc(m.Params, func(p *Param) bool {
		return !p.split && slices.ContainsFunc(p.home, func(h weightHome) bool { return !h.host })
	})
	switch experts := m.ExpertParallel(); {
	case experts && sharded:
		text = "experts divided and other weights sharded"
	case experts:
		text = "experts divided"
	case m.stages != nil:
		text = fmt.Sprintf("blocks in %d stages", m.Stages())
		if m.chunks > 1 {
			text += fmt.Sprintf(" of %d chunks", m.chunks)
		}
		for i, st := range m.stages {
			text += fmt.Sprintf("%s %g", []string{":", ","}[min(i, 1)], m.BlocksOf(st.From, st.To))
		}
	case sharded:
		text = "weights sharded"
	default:
		text = "weights replicated"
	}
	if blocks, _ := m.OnHost(); blocks > 0 {
		text += fmt.Sprintf(", %d of %d blocks on the host", blocks, len(m.Blocks))
	}
	return text
}

// cut gives weights homes in the memory of ranks and of the host, as the options say.
func (m *Model) cut(o Options) error {
	for i, l := range m.mixtures() {
		l.place = i
	}
	if o.home != nil {
		return m.cutLike(o.home)
	}
	if o.Halves {
		m.HalveBlocks()
	}
	ranks := o.Ranks
	if len(ranks) < 2 {
		ranks = []kernels.Device{m.dev}
	} else if err := m.cutOver(ranks, o); err != nil {
		return err
	}
	if o.Offload.Weights {
		if err := m.leave(ranks, o.Offload.Stay); err != nil {
			return err
		}
	}
	m.allocateHomes(ranks)
	return nil
}

// cutLike has the cuts, and the memory, of another rank's model.
func (m *Model) cutLike(first *Model) error {
	for _, i := range first.halves {
		if err := m.halve(i); err != nil {
			return err
		}
	}
	for i, p := range m.Params {
		of := first.Params[i]
		p.home, p.split, p.staged = of.home, of.split, of.staged
	}
	m.chunks = first.chunks
	for _, st := range first.stages {
		m.stages = append(m.stages, m.Stage(st.From, st.To))
	}
	return nil
}

// cutOver divides experts, shards blocks and cuts stages over several ranks, whichever the options ask for.
func (m *Model) cutOver(ranks []kernels.Device, o Options) error {
	if o.Experts {
		if err := m.cutExperts(ranks); err != nil {
			return err
		}
	}
	if o.Blocks {
		m.cutBlocks(ranks)
	}
	if o.Stages > 1 {
		return m.cutStages(ranks, o.Stages, max(o.Chunks, 1), o.Cut)
	}
	return nil
}

// allocateHomes gives the homes memory.
func (m *Model) allocateHomes(ranks []kernels.Device) {
	for i, dev := range ranks {
		for _, host := range []bool{false, true} {
			var homes []*weightHome
			bytes := 0
			for _, p := range m.Params {
				for k := range p.home {
					if h := &p.home[k]; h.owner == i && h.host == host {
						homes, bytes = append(homes, h), bytes+storageBytes(h.t, h.q)
					}
				}
			}
			if bytes == 0 {
				continue
			}
			memory := kernels.NewArena(dev)
			if host {
				memory = kernels.NewHostArena(dev)
			}
			memory.Reserve(bytes)
			for _, h := range homes {
				allocateStorage(memory, &h.t, h.q)
			}
		}
	}
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

// cutStages gives each rank consecutive blocks of a pipeline, or chunks of them: so many as cut says, or, where that is
// nil, so that the longest of all is as short as can be.
func (m *Model) cutStages(ranks []kernels.Device, stages, chunks int, cut []float64) error {
	if stages != len(ranks) {
		return fmt.Errorf("parallel.stages: want 1, or one for each of %d ranks: several pipelines next to one "+
			"another are not supported", len(ranks))
	}
	switch blocks := len(m.Blocks); {
	case stages > blocks:
		return fmt.Errorf("parallel.stages: %d stages have a block each, and %s has %d: set 1, or at most as many",
			stages, m.Family, blocks)
	case stages*chunks > blocks:
		return fmt.Errorf("pipeline.chunks: %d chunks of %d stages have a block each, and %s has %d: set fewer, or "+
			"another pipeline.schedule", chunks, stages, m.Family, blocks)
	}
	if len(m.indexers) > 0 {
		return fmt.Errorf("parallel.stages: keys that an indexer of %s has selected are not sent to the next stage: "+
			"set 1", m.Family)
	}
	ends, err := m.stageEnds(cut, stages, chunks)
	if err != nil {
		return err
	}
	list, from := m.blockParams(), 0
	m.chunks = chunks
	for i, to := range ends {
		i := i % stages
		for _, p := range slices.Concat(list[from:to]...) {
			p.home, p.staged = []weightHome{p.newHome(i, ranks[i], p.W.Groups)}, true
		}
		m.stages = append(m.stages, m.Stage(from, to))
		from = to
	}
	return nil
}

// stageEnds is the block behind each chunk of a pipeline that has so many blocks. It halves blocks in which one ends.
func (m *Model) stageEnds(cut []float64, stages, chunks int) (ends []int, err error) {
	if len(cut) == 0 {
		for _, blocks := range schedule.Even(m.blockCosts(), stages*chunks) {
			cut = append(cut, float64(blocks))
		}
	}
	n := 0.0
	for _, blocks := range cut {
		n += blocks
	}
	if n != float64(len(m.Blocks)) || len(cut) != stages*chunks {
		return nil, fmt.Errorf("pipeline.blocks: %v are %g blocks, and %s has %d in %d stages of %d chunks: change it "+
			"or leave it out", cut, n, m.Family, len(m.Blocks), stages, chunks)
	}
	n = 0
	for _, blocks := range cut {
		n += blocks
		at := int(n) + len(m.halves)
		if n != math.Trunc(n) {
			if err := m.halve(at); err != nil {
				return nil, err
			}
			at++
		}
		ends = append(ends, at)
	}
	return ends, nil
}

// blockCosts is how many weights a row is multiplied with in each block; in the last one with the head's too.
func (m *Model) blockCosts() (costs []int) {
	for i, list := range m.blockParams() {
		n := 0
		for _, p := range list {
			n += p.Elements()
		}
		for _, sub := range m.Blocks[i] {
			n -= sub.Layer.Idle()
		}
		costs = append(costs, n)
	}
	costs[len(costs)-1] += m.Head.W.Elements()
	return costs
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

// allocateSlots makes the slots: the weights of all blocks of one slot lie over one another.
func (m *Model) allocateSlots(rank int) {
	w := &shardedWeights{blocks: make([]copiedBlock, len(m.Blocks))}
	w.dev, _ = m.dev.(kernels.Transfers)
	lists := make([][]*Param, len(m.Blocks))
	for _, p := range m.Params {
		if p.away(rank) {
			if p.split {
				p.describeAs(p.home[rank])
			}
			i := p.unit - blockUnit(0)
			lists[i] = append(lists[i], p)
		}
	}
	var largest [2]int
	next := 0
	w.staged = m.stages != nil
	for i, list := range lists {
		if len(list) > 0 {
			w.blocks[i].slot = next
			largest[next] = max(largest[next], weightBytes(list))
			next = 1 - next
		}
	}
	var slots [2]*kernels.Arena
	for i := range slots {
		slots[i] = kernels.NewArena(m.dev)
		slots[i].Reserve(largest[i])
	}
	for i, list := range lists {
		slot := slots[w.blocks[i].slot]
		first := slot.Mark()
		for _, p := range list {
			p.allocate(slot)
			w.blocks[i].add(p, rank)
		}
		slot.Release(first)
	}
	m.sharded = w
}

// add adds the copies of a weight, or of a rank's part of it.
func (b *copiedBlock) add(p *Param, rank int) {
	at := 0
	for _, h := range p.home {
		if p.split && h.owner != rank {
			continue
		}
		k := slices.IndexFunc(b.from, func(s weightSource) bool { return s.owner == h.owner && s.host == h.host })
		if k < 0 {
			k, b.from = len(b.from), append(b.from, weightSource{owner: h.owner, host: h.host})
		}
		for i, own := range p.tensors() {
			b.from[k].copies = append(b.from[k].copies, kernels.PeerCopy{Dst: matricesOf(own, at, h.t.Groups),
				Src: tensorsOf(h.t, h.q)[i]})
		}
		at += h.t.Groups
	}
}

// weightBytes is the memory of weights in an arena.
func weightBytes(list []*Param) (bytes int) {
	for _, p := range list {
		bytes += storageBytes(p.W, p.Q)
	}
	return bytes
}
