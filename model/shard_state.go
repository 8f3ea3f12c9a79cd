package model

import (
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Offload says what a model keeps in pinned memory of the host.
type Offload struct {
	Optimizer bool // masters and moments; they pass through a ring on the device when they are updated
	Ring      int  // bytes of the ring
	OnHost    int  // bytes of the rank's states that the host's cores update, at most

	Weights bool // of blocks, frozen, until at most Stay bytes of them are on a card
	Stay    int

	Activations bool // inputs of blocks that do not keep everything, see [parallel.OffloadStack]
}

// ShardState is the optimizer's state of consecutive elements of a shard, in their shape.
type ShardState struct {
	W     kernels.Tensor           // the elements
	Q     *kernels.QuantizedWeight // in codes; nil: W
	Grad  kernels.Tensor           // F32
	Moved StateTensors             // on the device, while Use has brought them there
	kept  StateTensors             // between two updates: the same, or in the host's memory
	Host  *HostUpdate              // the host's cores update it, so it is never Moved; nil: the device does

	shard *Shard
	at    int                // the first element
	ring  *parallel.HostRing // of what is in the host's memory; nil: nothing is
	piece int
	last  bool // of the piece
}

// StateTensors are the numbers of an optimizer's state, F32.
type StateTensors struct {
	Master kernels.Tensor // what the optimizer updates; the weight itself in an F32 model
	M, V   kernels.Tensor // moments
}

// HostUpdate is a state that the host's cores update, in the host's memory, and where the device's part comes and goes.
type HostUpdate struct {
	CPU kernels.Device // of [kernels.HostMemory]
	StateTensors
	Grad, W kernels.Tensor // in the shape of the elements; W of an F32 model is Master
	Factor  kernels.Tensor // F32 [1, 1]
}

// Use holds what is enqueued next until the state is on the device. States are used in the order of [Model.States].
func (st *ShardState) Use() { st.ring.Use(st.piece) }

// Done ends the use of the state: behind the last one of a piece of the ring, that goes back to the host's memory.
func (st *ShardState) Done() {
	if st.last {
		st.ring.GiveBack()
	}
}

// pieceBytes is the most state that passes through the ring at once, and ringPieces how many fit at least: copies long
// enough for the link's full speed, and several on their way.
const pieceBytes, ringPieces = 256 << 20, 4

// cutStates cuts the states of a rank's shards, in the order in which they are updated: whole ones that stay on the
// device, or pieces that pass through the ring together. Indexers come last, as they have an update of their own.
func (m *Model) cutStates(rank int) {
	of := m.IndexerParams()
	m.states = nil
	for _, indexers := range []bool{false, true} {
		for _, s := range m.Shards {
			if s.Owner == rank && of[s.Param] == indexers {
				m.states = append(m.states, s.cutStates(m.offload)...)
			}
		}
	}
	m.giveToHost()
}

// giveToHost leaves the last states, which the next forward needs last, to the host's cores. Those of weights in codes,
// which a device encodes, and of indexers stay.
func (m *Model) giveToHost() {
	of, left := m.IndexerParams(), m.offload.OnHost
	for _, st := range slices.Backward(m.states) {
		if st.Q != nil || of[st.shard.Param] {
			continue
		}
		if left -= st.columns() * kernels.F32.Size(); left < 0 {
			return
		}
		st.Host = &HostUpdate{}
	}
}

// HostStates is the bytes of the rank's states in the host's memory: of each unit in the order of a forward those that
// pass through the device, nil: none, and of all units those that the host's cores update.
func (m *Model) HostStates() (passing []int, updated int) {
	if !m.offload.Optimizer {
		return nil, 0
	}
	passing = make([]int, m.headUnit()+1)
	for _, st := range m.states {
		bytes := st.columns() * kernels.F32.Size()
		if st.Host != nil {
			updated += bytes
		} else {
			passing[st.shard.Param.unit] += bytes
		}
	}
	return passing, updated
}

// cutStates cuts the state of a shard: whole matrices of one in codes, whose blocks are encoded together, else any
// elements.
func (s *Shard) cutStates(o Offload) (list []*ShardState) {
	rows, each := 1, s.W.Len()
	if o.Optimizer {
		numbers := optimizerNumbers(s.W.DType, s.Q != nil)
		each = min(pieceBytes, o.Ring/ringPieces) / (numbers * kernels.F32.Size())
		each = max(each/aligned(1), 1) * aligned(1)
		if s.Q != nil {
			rows = s.W.Rows * s.W.Cols
			each = max(each/rows, 1) * rows
		}
	}
	for from := 0; from < s.W.Len(); from += each {
		st := &ShardState{shard: s}
		st.cut(from, min(from+each, s.W.Len()))
		list = append(list, st)
		s.States = append(s.States, st)
	}
	return list
}

// cut sets which elements the state is of.
func (st *ShardState) cut(from, to int) {
	s := st.shard
	if s.Q != nil {
		each := s.W.Rows * s.W.Cols
		q := s.Q.Matrices(from/each, (to-from)/each)
		st.Q, st.W = &q, q.Shape()
	} else if st.W = s.W; to-from < s.W.Len() {
		st.W = s.W.Reshape(1, s.W.Len()).ColRange(from, to)
	}
	st.at = from
}

// numbers is how many fp32 numbers the state has for each element.
func (st *ShardState) numbers() int { return optimizerNumbers(st.W.DType, st.Q != nil) }

// columns is how many it has in all, each tensor aligned.
func (st *ShardState) columns() int { return st.numbers() * aligned(st.W.Len()) }

// placePieces puts states that follow one another, of one update, into pieces of the ring.
func (m *Model) placePieces() (columns []int) {
	most, of := min(pieceBytes, m.offload.Ring/ringPieces)/kernels.F32.Size(), m.IndexerParams()
	var before *ShardState
	for _, st := range m.states {
		if st.Host != nil {
			continue
		}
		last := len(columns) - 1
		if before == nil || columns[last]+st.columns() > most || of[st.shard.Param] != of[before.shard.Param] {
			if columns = append(columns, 0); before != nil {
				before.last = true
			}
			last++
		}
		before, st.piece = st, last
		columns[last] += st.columns()
	}
	if before != nil {
		before.last = true
	}
	return columns
}

// stateBytes is what the optimizer's states take of the device.
func (m *Model) stateBytes(pieces []int) (bytes int) {
	if m.offload.Optimizer {
		slots, each := parallel.Slots(pieces, m.offload.Ring)
		return slots * each
	}
	for _, st := range m.states {
		bytes += st.columns() * kernels.F32.Size()
	}
	return bytes
}

// allocateStates gives the states memory, and masters their first values.
func (m *Model) allocateStates(pieces []int) {
	if m.offload.Optimizer {
		host := kernels.NewHostArena(m.dev)
		bytes := 0
		for _, n := range pieces {
			bytes += kernels.ArenaBytes(kernels.F32, 1, n)
		}
		host.Reserve(bytes)
		m.ring = parallel.NewHostRing(m.dev, m.mem, host, pieces, m.offload.Ring)
	}
	at, piece := 0, -1
	for _, st := range m.states {
		st.Grad = matrices(st.shard.Grad.Reshape(1, st.shard.W.Len()), st.at, st.W)
		switch {
		case st.Host != nil:
			continue
		case m.ring == nil:
			of := m.mem.New(kernels.F32, 1, st.columns())
			st.Moved = st.tensors(of, 0)
			st.kept = st.Moved
		default:
			if st.piece != piece {
				at, piece = 0, st.piece
			}
			st.ring = m.ring
			st.Moved, st.kept = st.tensors(m.ring.OnDevice(st.piece), at), st.tensors(m.ring.Host(st.piece), at)
			at += st.columns()
		}
		st.Use()
		m.fillMaster(st)
		st.Done()
	}
	m.ring.Finish()
	m.allocateOnHost()
}

// allocateOnHost gives the states that the host's cores update their memory, and masters their first values.
func (m *Model) allocateOnHost() {
	var list []*ShardState
	bytes := 0
	for _, st := range m.states {
		if st.Host != nil {
			list = append(list, st)
			bytes += st.hostBytes()
		}
	}
	if len(list) == 0 {
		return
	}
	host := kernels.NewHostArena(m.dev)
	host.Reserve(bytes)
	for _, st := range list {
		h, n := st.Host, st.W.Len()
		st.ring, h.CPU = m.ring, m.dev.(kernels.HostMemory).Host()
		st.kept = st.tensors(host.New(kernels.F32, 1, st.columns()), 0)
		h.StateTensors = st.kept
		h.Grad = matrices(host.New(kernels.F32, 1, n), 0, st.W)
		h.W = matrices(host.New(st.W.DType, 1, n), 0, st.W)
		h.Factor = host.New(kernels.F32, 1, 1)
		if st.numbers() == 2 {
			h.Master = h.W
		} else if !kernels.IsMeta(m.dev) {
			t := m.dev.(kernels.Transfers)
			t.CopyPeer([]kernels.Event{t.Record()}, kernels.PeerCopy{Dst: h.W, Src: st.W}).Synchronize()
			h.CPU.Copy(h.Master, h.W)
		}
	}
}

// hostBytes is what a state that the host's cores update takes of the host's memory.
func (st *ShardState) hostBytes() int {
	n := st.W.Len()
	return kernels.ArenaBytes(kernels.F32, 1, st.columns()) + kernels.ArenaBytes(kernels.F32, 1, n) +
		kernels.ArenaBytes(st.W.DType, 1, n) + kernels.ArenaBytes(kernels.F32, 1, 1)
}

// tensors are views of columns of a vector from one on.
func (st *ShardState) tensors(t kernels.Tensor, at int) (s StateTensors) {
	next := func() kernels.Tensor {
		from := at
		at += aligned(st.W.Len())
		return matrices(t, from, st.W)
	}
	s.M, s.V, s.Master = next(), next(), st.W
	if st.numbers() > 2 {
		s.Master = next()
	}
	return s
}

// fillMaster makes a master of the weight that is there.
func (m *Model) fillMaster(st *ShardState) {
	switch {
	case st.Q != nil:
		if !kernels.IsMeta(m.dev) {
			numbersOf(m.dev, *st.Q, func(g int, values []float32) {
				writeValues(m.dev, st.Moved.Master.Group(g), values)
			})
		}
	case st.W.DType != kernels.F32:
		m.dev.Copy(st.Moved.Master, st.W)
	}
}

// flushStates waits until the host's memory has what the device last made of the optimizer's state.
func (m *Model) flushStates() {
	m.mustBeUpdated()
	if err := m.ring.Flush(); err != nil {
		panic(kernels.Fault{Err: err})
	}
}

// on is where a tensor of the state lies between two updates, as elements.
func (st *ShardState) on(dev kernels.Device, t kernels.Tensor) elementsOn {
	t = t.Reshape(1, t.Len())
	if st.ring != nil && t.Data != st.W.Data {
		return elementsOn{hostMemory{dev}, t}
	}
	return elementsOn{dev, t}
}
