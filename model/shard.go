package model

import (
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/quant"
)

// Shard is consecutive matrices of a trained parameter whose gradient one rank sums, and whose optimizer state that
// rank alone holds: ZeRO-2 (Rajbhandari et al., arXiv 1910.02054). All ranks cut alike, in the order of the graph.
type Shard struct {
	Param *Param
	Owner int                      // rank
	W     kernels.Tensor           // the matrices of the parameter, in the memory of this rank
	Q     *kernels.QuantizedWeight // in codes; nil: W

	Sharded bool // weights are cut over ranks too: W is in the memory of the owner

	// Of the owner only, F32 in the shape of W.
	Grad     kernels.Tensor // the sum over all segments of a step
	HeadGrad kernels.Tensor // as [Param.HeadGrad]
	States   []*ShardState  // of all elements, in order

	atSum int // the first column of the owner's sums
}

// TrainAll is [Model.TrainShards] of the only rank.
func (m *Model) TrainAll() { m.TrainShards(0, 1) }

// TrainShards gives every parameter a gradient, and those of the rank's shards sums and optimizer state; with LoRA only
// the adapters, with [IndexersDense] only the indexers. Masters start as the weights that are there now. One rank adds
// gradients where they are summed. Of several, each has memory for the gradients of a few units: see [Place].
func (m *Model) TrainShards(rank, ranks int) {
	list := m.trainable()
	if i := slices.IndexFunc(list, func(p *Param) bool {
		return p.Q != nil && p.encoding == quant.AsTrained
	}); i >= 0 {
		panic(fmt.Sprintf("model: %s is in codes of a release and is to be trained", list[i].Name))
	}
	m.Shards = m.cutShards(list, ranks)
	sums := m.placeSums(rank)
	bytes := kernels.ArenaBytes(kernels.F32, 1, sums)
	largest := 0
	if ranks > 1 {
		m.grads.units = m.gradientUnits(slices.DeleteFunc(list, func(p *Param) bool { return p.split }))
		for _, u := range m.grads.units {
			largest = max(largest, u.columns)
		}
		bytes += 2 * kernels.ArenaBytes(kernels.F32, 1, largest)
	}
	m.cutStates(rank)
	pieces := m.placePieces()
	m.mem.Reserve(bytes + m.stateBytes(pieces))
	m.grads.sums = m.mem.New(kernels.F32, 1, sums)
	for _, s := range m.Shards {
		if s.Owner == rank {
			s.viewSums(m)
		}
	}
	m.allocateStates(pieces)
	if ranks > 1 {
		for i := range m.grads.slots {
			m.grads.slots[i].t = m.mem.New(kernels.F32, 1, largest)
		}
		for _, u := range m.grads.units {
			u.view(m.grads.slots[0].t, 1)
		}
		return
	}
	for _, s := range m.Shards {
		s.Param.Grad, s.Param.HeadGrad = s.Grad, s.HeadGrad
	}
}

// cutShards cuts parameters over ranks: where their weights lie, if those are cut, else as evenly as matrices allow.
func (m *Model) cutShards(list []*Param, ranks int) (shards []*Shard) {
	parts := cutMatrices(slices.DeleteFunc(slices.Clone(list), func(p *Param) bool { return p.home != nil }),
		m.gradientColumns, ranks)
	for _, p := range list {
		for _, h := range p.home {
			shards = append(shards, &Shard{Param: p, Owner: h.owner, W: h.t, Q: h.q, Sharded: true})
		}
		for ; len(parts) > 0 && parts[0].param == p; parts = parts[1:] {
			s := &Shard{Param: p, Owner: parts[0].owner}
			if p.Q != nil {
				q := p.Q.Matrices(parts[0].first, parts[0].groups)
				s.Q, s.W = &q, q.Shape()
			} else {
				s.W = matricesOf(p.W, parts[0].first, parts[0].groups)
			}
			shards = append(shards, s)
		}
	}
	return shards
}

// placeSums lays the sums of each owner's shards out, a tied one's head share behind its own, and returns how many
// columns those of a rank have.
func (m *Model) placeSums(rank int) (columns int) {
	at := map[int]int{}
	for _, s := range m.Shards {
		s.atSum = at[s.Owner]
		if at[s.Owner] += aligned(s.W.Len()); m.tied(s.Param) {
			at[s.Owner] += aligned(s.W.Len())
		}
	}
	return at[rank]
}

// viewSums finds the shard's gradients in the rank's sums.
func (s *Shard) viewSums(m *Model) {
	s.Grad = matrices(m.grads.sums, s.atSum, s.W)
	if m.tied(s.Param) {
		s.HeadGrad = matrices(m.grads.sums, s.atSum+aligned(s.W.Len()), s.W)
	}
	if s.Param.split {
		s.Param.Grad = s.Grad
	}
}

// optimizerNumbers is how many fp32 numbers the optimizer keeps for each weight of a storage type, or in codes: two
// moments, and a master where the weight itself is not fp32.
func optimizerNumbers(d kernels.DType, coded bool) int {
	if coded || d != kernels.F32 {
		return 3
	}
	return 2
}

// gradientColumns is how many columns the sums of a parameter's gradient have; of a tied one with the head's share.
func (m *Model) gradientColumns(p *Param) int {
	if m.tied(p) {
		return 2 * aligned(p.Elements())
	}
	return aligned(p.Elements())
}

// aligned is a number of fp32 columns after which a tensor begins as in an arena of its own.
func aligned(n int) int { return kernels.ArenaBytes(kernels.F32, 1, n) / kernels.F32.Size() }

// matrices is a view of columns of a vector in the shape of a parameter or of a shard.
func matrices(t kernels.Tensor, at int, like kernels.Tensor) kernels.Tensor {
	t = t.ColRange(at, at+like.Len()).Reshape(like.Groups*like.Rows, like.Cols)
	return t.Stacked(0, like.Groups, like.Rows)
}

// matrixPart is consecutive matrices of a parameter.
type matrixPart struct {
	param         *Param
	first, groups int
	owner         int
}

// cutMatrices gives each rank consecutive matrices, of about the same width together. A matrix is not cut: its squares
// are one sum. Matrices that would not be aligned stay together.
func cutMatrices(list []*Param, width func(p *Param) int, ranks int) (parts []matrixPart) {
	all, before := 0, 0
	for _, p := range list {
		all += width(p)
	}
	for _, p := range list {
		size, count, each := p.W.Rows*p.W.Cols, p.W.Groups, 1
		if size%aligned(1) != 0 {
			size, count, each = p.Elements(), 1, p.W.Groups
		}
		for g := range count {
			owner := min((2*(before+g*size)+size)*ranks/(2*all), ranks-1)
			if n := len(parts); n > 0 && parts[n-1].param == p && parts[n-1].owner == owner {
				parts[n-1].groups += each
				continue
			}
			parts = append(parts, matrixPart{p, g * each, each, owner})
		}
		before += width(p)
	}
	return parts
}

// matricesOf is some matrices of a tensor.
func matricesOf(t kernels.Tensor, first, groups int) kernels.Tensor {
	rows := t.Rows
	return t.Reshape(t.Groups*t.Rows, t.Cols).Stacked(first*rows, groups, rows)
}

// Offload says what a model keeps in pinned memory of the host.
type Offload struct {
	Optimizer bool // masters and moments; they pass through a ring on the device when they are updated
	Ring      int  // bytes of the ring
}

// ShardState is the optimizer's state of consecutive elements of a shard, in their shape.
type ShardState struct {
	W     kernels.Tensor           // the elements
	Q     *kernels.QuantizedWeight // in codes; nil: W
	Grad  kernels.Tensor           // F32
	Moved StateTensors             // on the device, while Use has brought them there
	kept  StateTensors             // between two updates: the same, or in the host's memory

	shard *Shard
	at    int                // the first element
	ring  *parallel.HostRing // of what is in the host's memory; nil: nothing is
	piece int
}

// StateTensors are the numbers of an optimizer's state, F32.
type StateTensors struct {
	Master kernels.Tensor // what the optimizer updates; the weight itself in an F32 model
	M, V   kernels.Tensor // moments
}

// Use holds what is enqueued next until the state is on the device. States are used in the order of [Model.States].
func (st *ShardState) Use() { st.ring.Use(st.piece) }

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
	for i, st := range m.states {
		last := len(columns) - 1
		if i == 0 || columns[last]+st.columns() > most || of[st.shard.Param] != of[m.states[i-1].shard.Param] {
			columns = append(columns, 0)
			last++
		}
		st.piece = last
		columns[last] += st.columns()
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
	at := 0
	for i, st := range m.states {
		if m.ring == nil {
			of := m.mem.New(kernels.F32, 1, st.columns())
			st.Moved = st.tensors(of, 0)
			st.kept = st.Moved
		} else {
			if i == 0 || st.piece != m.states[i-1].piece {
				at = 0
			}
			st.ring = m.ring
			st.Moved, st.kept = st.tensors(m.ring.OnDevice(st.piece), at), st.tensors(m.ring.Host(st.piece), at)
			at += st.columns()
		}
		st.Grad = matrices(st.shard.Grad.Reshape(1, st.shard.W.Len()), st.at, st.W)
		st.Use()
		m.fillMaster(st)
	}
	m.ring.Finish()
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

// FetchStates begins to bring what the next update needs from the host's memory.
func (m *Model) FetchStates() { m.ring.Fetch() }

// flushStates waits until the host's memory has what the device last made of the optimizer's state.
func (m *Model) flushStates() {
	if err := m.ring.Flush(); err != nil {
		panic(kernels.Fault{Err: err})
	}
}

// on is where a tensor of the state lies between two updates, as elements.
func (st *ShardState) on(dev kernels.Device, t kernels.Tensor) elementsOn {
	t = t.Reshape(1, t.Len())
	if st.ring != nil && t.Data != st.W.Data {
		return elementsOn{hostMemory{}, t}
	}
	return elementsOn{dev, t}
}

// hostMemory reads and writes tensors in the memory of the host.
type hostMemory struct{}

func (hostMemory) Write(dst kernels.Tensor, src []byte) {
	if n := copy(dst.Raw(), src); n != len(src) || n != dst.Bytes() {
		panic(fmt.Sprintf("model: %d bytes into %s", len(src), dst))
	}
}

func (hostMemory) Read(dst []byte, src kernels.Tensor) {
	if n := copy(dst, src.Raw()); n != len(dst) || n != src.Bytes() {
		panic(fmt.Sprintf("model: %s into %d bytes", src, len(dst)))
	}
}
