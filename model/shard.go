package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Shard is consecutive matrices of a trained parameter whose gradient one rank sums, and whose optimizer state that
// rank alone holds: ZeRO-1 (Rajbhandari et al., arXiv 1910.02054). All ranks cut alike, in the order of the graph.
type Shard struct {
	Param *Param
	Owner int            // rank
	W     kernels.Tensor // the matrices of the parameter, in the memory of this rank

	// Of the owner only, F32 in the shape of W.
	Grad     kernels.Tensor // the sum over all segments of a step
	HeadGrad kernels.Tensor // as [Param.HeadGrad]
	Master   kernels.Tensor // what the optimizer updates; W itself in an F32 model
	M, V     kernels.Tensor // moments

	at int // the first column of Model.grads
}

// TrainAll is [Model.TrainShards] of the only rank.
func (m *Model) TrainAll() { m.TrainShards(0, 1) }

// TrainShards gives every parameter memory for gradients, and those of the rank's shards optimizer state; with LoRA
// only the adapters, with [IndexersDense] only the indexers. Masters start as the weights that are there now. One rank
// sums gradients where they are computed. Of several, each computes those of a micro-batch at a time, and sums those of
// its shards elsewhere: see [Model.ReduceGradients].
func (m *Model) TrainShards(rank, ranks int) {
	list := m.trainable()
	first, columns := m.gradientColumns(list)
	m.Shards = cutShards(list, first, columns, ranks)
	from, to := ownedColumns(m.Shards, rank, columns)
	bytes := kernels.ArenaBytes(kernels.F32, 1, columns)
	if ranks > 1 {
		bytes += kernels.ArenaBytes(kernels.F32, 1, to-from)
	}
	for _, s := range m.Shards {
		if s.Owner == rank {
			bytes += optimizerNumbers(s.W.DType) * kernels.ArenaBytes(kernels.F32, 1, s.W.Len())
		}
	}
	m.mem.Reserve(bytes)
	m.grads = m.mem.New(kernels.F32, 1, columns)
	if m.sums = m.grads; ranks > 1 {
		m.sums = m.mem.New(kernels.F32, 1, to-from)
	}
	for i, p := range list {
		p.Grad = matrices(m.grads, first[i], p.W)
		if m.tied(p) {
			p.HeadGrad = matrices(m.grads, first[i]+aligned(p.Elements()), p.W)
		}
	}
	for _, s := range m.Shards {
		if s.Owner == rank {
			s.train(m, s.at-from)
		}
	}
}

// train allocates the optimizer's state. at is the shard's first column of the rank's sums.
func (s *Shard) train(m *Model, at int) {
	s.Grad = matrices(m.sums, at, s.W)
	if m.tied(s.Param) {
		s.HeadGrad = matrices(m.sums, at+aligned(s.W.Len()), s.W)
	}
	like := func() kernels.Tensor { return m.mem.NewGrouped(kernels.F32, s.W.Groups, s.W.Rows, s.W.Cols) }
	s.M, s.V, s.Master = like(), like(), s.W
	if s.W.DType != kernels.F32 {
		s.Master = like()
		m.dev.Copy(s.Master, s.W)
	}
}

// optimizerNumbers is how many fp32 numbers [Shard.train] makes for each weight of a storage type: two moments, and a
// master where the weight itself is not fp32.
func optimizerNumbers(d kernels.DType) int {
	if d != kernels.F32 {
		return 3
	}
	return 2
}

// gradientColumns lays the gradients of parameters out one after the other, a tied one's head share behind its own, and
// returns the first column of each.
func (m *Model) gradientColumns(list []*Param) (first []int, columns int) {
	for _, p := range list {
		first = append(first, columns)
		columns += aligned(p.Elements())
		if m.tied(p) {
			columns += aligned(p.Elements())
		}
	}
	return first, columns
}

// aligned is a number of fp32 columns after which a tensor begins as in an arena of its own.
func aligned(n int) int { return kernels.ArenaBytes(kernels.F32, 1, n) / kernels.F32.Size() }

// matrices is a view of columns of a vector in the shape of a parameter or of a shard.
func matrices(t kernels.Tensor, at int, like kernels.Tensor) kernels.Tensor {
	t = t.ColRange(at, at+like.Len()).Reshape(like.Groups*like.Rows, like.Cols)
	return t.Stacked(0, like.Groups, like.Rows)
}

// cutShards gives each rank consecutive matrices, about the same number of columns. A matrix is not cut: its squares
// are one sum. Matrices that would not be aligned stay together.
func cutShards(list []*Param, first []int, columns, ranks int) (shards []*Shard) {
	for i, p := range list {
		size, last := p.W.Rows*p.W.Cols, p.W.Groups
		if size%aligned(1) != 0 {
			size, last = p.Elements(), 1
		}
		for g := range last {
			at := first[i] + g*size
			owner := min((2*at+size)*ranks/(2*columns), ranks-1)
			if n := len(shards); n > 0 && shards[n-1].Param == p && shards[n-1].Owner == owner {
				shards[n-1].W.Groups++
				continue
			}
			s := &Shard{Param: p, Owner: owner, W: p.W, at: at}
			if last > 1 {
				s.W = p.W.Group(g)
			}
			shards = append(shards, s)
		}
	}
	return shards
}

// ownedColumns is the range of columns whose sums are a rank's.
func ownedColumns(shards []*Shard, rank, columns int) (from, to int) {
	start := func(rank int) int {
		for _, s := range shards {
			if s.Owner >= rank {
				return s.at
			}
		}
		return columns
	}
	return start(rank), start(rank + 1)
}

// ReduceGradients adds the gradients that the ranks have just computed to the sums of their owners, in the order of
// ranks, and clears them. They are those of one segment each; a rank that computed none has none.
func (m *Model) ReduceGradients(r *parallel.Rank, computed bool) {
	if r.Size == 1 {
		return // they have been added where they were computed
	}
	defer r.Stack.Release(r.Stack.Mark())
	if r.Data == nil { // a plan: the rank stands for all
		r.Stack.New(kernels.F32, r.Size, m.sums.Cols)
		return
	}
	rows := 0
	if computed {
		rows = 1
	}
	r.Data.ReduceScatter(m.sums, m.grads.RowRange(0, rows)).Wait()
	if computed {
		r.Dev.Zero(m.grads)
	}
}

// GatherTied adds the head's share of a tied embedding's gradient to the embedding's own, once for each optimizer step.
func (m *Model) GatherTied(r *parallel.Rank) {
	for _, s := range m.Shards {
		if !s.HeadGrad.IsNil() {
			r.Dev.Accumulate(s.Grad, s.HeadGrad.Reshape(1, s.HeadGrad.Len()))
			r.Dev.Zero(s.HeadGrad)
		}
	}
}
