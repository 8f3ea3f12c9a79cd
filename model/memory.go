package model

import (
	"fmt"
	"slices"

	"lockstep/kernels"
)

// Memory is what a model keeps on its device whatever the batch, in bytes. Activations come on top.
type Memory struct {
	Weights  int // as stored
	Training int // gradients, moments and masters of what is trained
	Token    int // of the cache, for each position of a sequence in flight
	Sequence int // of the cache, for each sequence in flight whatever its length
}

// Memory counts by shapes, so a described model has one too. Where a model has adapters, only they are trained.
func (m *Model) Memory() Memory {
	var n Memory
	for _, p := range m.Params {
		n.Weights += p.Bytes()
	}
	for _, p := range m.trainable() {
		n.Training += p.Elements() * p.states(m.tied(p)) * kernels.F32.Size()
	}
	n.Token, n.Sequence = m.CacheBytes(1)
	return n
}

// trainable is the parameters that training changes: all but buffers, or what an adapter's folder holds, or the
// indexers alone.
func (m *Model) trainable() []*Param {
	adapter, indexer := m.adapterParams(), m.IndexerParams()
	var out []*Param
	for _, p := range m.Params {
		if !p.Buffer && (m.LoRA == nil || adapter[p] || m.saved[p]) && (m.Indexing != IndexersDense || indexer[p]) {
			out = append(out, p)
		}
	}
	return out
}

// TrainedElements is how many weights are trained in each block, with those of the embedding in the first and of the
// head in the last, and in all.
func (m *Model) TrainedElements() (blocks []int, all int) {
	blocks = make([]int, len(m.Blocks))
	for _, p := range m.trainable() {
		at := min(max(p.unit-blockUnit(0), 0), len(blocks)-1)
		blocks[at] += p.Elements()
		all += p.Elements()
	}
	return blocks, all
}

// tied tells whether the parameter is both embedding and head.
func (m *Model) tied(p *Param) bool { return p == m.Embed.Param && p == m.Head.W }

// fits is an error where the device is known to have less memory than something takes.
func (m *Model) fits(what string, bytes int) error {
	if m.ops.bounded == nil {
		return nil
	}
	if have := m.ops.bounded.Available(); have > 0 && bytes > have {
		return fmt.Errorf("%s take %.1f GiB of memory, and %s has %.1f left", what, float64(bytes)/(1<<30),
			m.dev.Name(), float64(have)/(1<<30))
	}
	return nil
}

// allocate gives a described model memory on the device that it was described for: weights of zero, and the tables of
// rotary positions.
func (m *Model) allocate(dev kernels.Device, o Options) error {
	m.dev, m.mem, m.first, m.rank, m.offload = dev, kernels.NewArena(dev), o.home, o.rank, o.Offload
	if err := m.cut(o); err != nil {
		return err
	}
	own := slices.DeleteFunc(slices.Clone(m.Params), func(p *Param) bool { return p.home != nil || p.shared() })
	if err := m.fits("the weights", weightBytes(own)); err != nil {
		return err
	}
	bytes := weightBytes(own)
	for _, r := range m.ropes {
		bytes += r.bytes()
	}
	m.mem.Reserve(bytes)
	for _, p := range own {
		p.allocate(m.mem)
	}
	for _, r := range m.ropes {
		r.allocate(dev, m.mem)
	}
	for _, p := range m.Params {
		if p.home != nil && !p.away(o.rank) {
			own := p.home[0]
			if p.split {
				own = p.home[o.rank]
			}
			p.W, p.Q = own.t, own.q
		}
	}
	if slices.ContainsFunc(m.Params, func(p *Param) bool { return p.away(o.rank) }) {
		m.allocateSlots(o.rank)
	}
	return nil
}

// FitsTraining is an error where what TrainAll would take is more than the device has left.
func (m *Model) FitsTraining() error {
	bytes := m.Memory().Training
	if m.offload.Optimizer {
		states := 0
		for _, p := range m.trainable() {
			states += p.Elements() * optimizerNumbers(p.W.DType, p.Q != nil) * kernels.F32.Size()
		}
		bytes -= max(states-m.offload.Ring, 0)
	}
	return m.fits("gradients and moments of the trained weights", bytes)
}

// Reads is the bytes of weights that a forward reads at least once.
type Reads struct {
	// every forward: all weights but those below, and but the embedding, of which it reads a row for each token
	Dense   int
	Head    int   // where logits are asked for
	Experts []int // one routed expert of each mixture, in the order in which a forward comes to them
}

// Reads counts by shapes.
func (m *Model) Reads() Reads {
	n := Reads{Head: m.Head.W.Bytes()}
	for _, p := range m.Params {
		if p != m.Embed.Param && p != m.Head.W {
			n.Dense += p.Bytes()
		}
	}
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			if mix, ok := sub.Layer.(mixture); ok {
				all, each := mix.expertBytes()
				n.Dense -= all
				n.Experts = append(n.Experts, each)
			}
		}
	}
	return n
}

// mixture is a layer whose tokens read some of its experts each.
type mixture interface {
	// expertBytes is the bytes of the weights of all routed experts, and of one.
	expertBytes() (all, each int)
}

func (m *MoE) expertBytes() (all, each int) {
	for _, l := range m.Experts.Linears() {
		all += l.bytes()
	}
	return all, all / m.Experts.GateUp.W.matrices()
}

// bytes of a projection with its biases and adapters.
func (l *Linear) bytes() int {
	n := l.W.Bytes()
	for _, s := range l.Subs {
		if s.Bias != nil {
			n += s.Bias.W.Bytes()
		}
		if s.LoRA != nil {
			n += s.LoRA.A.W.Bytes() + s.LoRA.B.W.Bytes()
		}
	}
	return n
}

// CacheReads is the bytes of a cache that a forward of one row or more of each sequence has to read at least once: keys
// and values of all its positions (lengths, of which so many are counted more than once, where sequences share them),
// in layers that read a window or selected keys fewer, and states. Keys of an indexer are left out where it selects.
func (m *Model) CacheReads(lengths []int, shared int) (bytes int) {
	for _, bl := range m.Blocks {
		mixer := bl.mixer()
		if mixer == nil {
			continue
		}
		all, seen, most := -shared, 0, mixer.keys(m.MaxLength)
		for _, n := range lengths {
			all += n
			seen += min(n, most)
		}
		bytes += min(all, seen)*mixer.PageBytes(1) + len(lengths)*mixer.SlotBytes()
	}
	return bytes
}

func (a *Attention) keys(maxLength int) int {
	if a.Shape.Window > 0 {
		return a.Shape.Window
	}
	return maxLength
}

func (a *MLA) keys(maxLength int) int {
	if a.Sparse {
		return a.TopK
	}
	return maxLength
}

func (n *DeltaNet) keys(maxLength int) int { return maxLength }
func (m *Mamba) keys(maxLength int) int    { return maxLength }

// ExpertBytes is the weights of routed experts that this rank has.
func (m *Model) ExpertBytes() (bytes int) {
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			if mix, ok := sub.Layer.(*MoE); ok {
				for _, l := range mix.Experts.Linears() {
					bytes += l.W.heldBytes(m.rank)
				}
			}
		}
	}
	return bytes
}

// heldBytes is what a rank holds of a weight, copies of blocks ahead and the host's memory left out.
func (p *Param) heldBytes(rank int) (bytes int) {
	if p.home == nil {
		return storageBytes(p.W, p.Q)
	}
	for _, h := range p.home {
		if h.owner == rank && !h.host {
			bytes += storageBytes(h.t, h.q)
		}
	}
	return bytes
}

// Mixtures is how many layers have routed experts.
func (m *Model) Mixtures() int { return len(m.mixtures()) }
