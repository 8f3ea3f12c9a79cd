package model

import (
	"fmt"
	"slices"

	"lockstep/kernels"
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

// Copies is how many of the shard's matrices, the last ones, are copies of one weight whose first is elsewhere.
func (s *Shard) Copies() int {
	switch {
	case !s.Param.copies:
		return 0
	case s.Sharded && s.Owner > 0 && !s.Param.staged:
		return s.W.Groups
	}
	return s.W.Groups - 1
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
	tied := m.stages != nil && rank == m.Stages()-1 && slices.ContainsFunc(list, m.tied)
	if tied {
		bytes += kernels.ArenaBytes(kernels.F32, 1, m.Head.W.Elements())
	}
	largest := 0
	if ranks > 1 && m.stages == nil {
		largest = m.cutGradients(list)
		bytes += len(m.grads.slots) * kernels.ArenaBytes(kernels.F32, 1, largest)
	}
	m.cutStates(rank)
	pieces := m.placePieces()
	if m.offload.Optimizer {
		bytes += len(m.scales) * kernels.ArenaBytes(kernels.F32, 1, 2)
	}
	m.mem.Reserve(bytes + m.stateBytes(pieces))
	if m.offload.Optimizer {
		for i := range m.scales {
			m.scales[i] = m.mem.New(kernels.F32, 1, 2)
		}
	}
	m.grads.sums = m.mem.New(kernels.F32, 1, sums)
	for _, s := range m.Shards {
		if s.Owner == rank {
			s.viewSums(m)
		}
	}
	m.allocateStates(pieces)
	if m.grads.units != nil {
		m.allocateGradients(largest)
		return
	}
	m.addInPlace(rank)
	if tied {
		p := m.Head.W
		p.HeadGrad = matrices(m.mem.New(kernels.F32, 1, aligned(p.Elements())), 0, p.W)
		p.Grad = p.HeadGrad
	}
}

// cutGradients makes the units whose gradients pass from rank to rank, and returns the numbers of the largest. Experts
// that are divided have all of their gradients where they are.
func (m *Model) cutGradients(list []*Param) (largest int) {
	list = slices.DeleteFunc(list, func(p *Param) bool { return p.split })
	m.grads.units = m.gradientUnits(list)
	m.grads.small = m.LoRA != nil && len(m.saved) == 0 &&
		!slices.ContainsFunc(list, func(p *Param) bool { return p.W.Groups > 1 })
	for _, u := range m.grads.units {
		largest = max(largest, u.columns)
	}
	return largest
}

// allocateGradients takes the memory in which a unit's gradients are computed while those of the one before go on to
// the next rank.
func (m *Model) allocateGradients(largest int) {
	for i := range m.grads.slots {
		m.grads.slots[i].t = m.mem.New(kernels.F32, 1, largest)
	}
	for _, u := range m.grads.units {
		u.view(m.grads.slots[0].t, 1, nil)
	}
}

// addInPlace has gradients added where they are summed, to which no other rank adds.
func (m *Model) addInPlace(rank int) {
	for _, s := range m.Shards {
		if s.Owner == rank {
			s.Param.Grad, s.Param.HeadGrad = s.Grad, s.HeadGrad
		}
	}
}

// cutShards cuts parameters over ranks: where their weights lie, if those are cut, else as evenly as matrices allow. Of
// a pipeline a rank has all shards of its stage.
func (m *Model) cutShards(list []*Param, ranks int) (shards []*Shard) {
	if m.stages != nil {
		for _, p := range list {
			s := &Shard{Param: p, Owner: m.stageRank(p.unit), W: p.W, Q: p.Q}
			if p.home != nil {
				s.W, s.Q, s.Sharded = p.home[0].t, p.home[0].q, true
			}
			shards = append(shards, s)
		}
		return shards
	}
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
	if s.Param.split || s.Param == m.Embed.Param && m.ExpertParallel() {
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
		if size%aligned(1) != 0 || p.copies { // copies of one weight have one owner
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
