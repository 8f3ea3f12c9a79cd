package cpu

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"lockstep/kernels"
	"lockstep/kernels/cpu/vec"
)

// Sample chooses an id for each row of logits F32 [n, V], each by its own settings and nothing of its neighbours. The
// order of ids is (logit descending, id ascending). A row with a NaN or +Inf gives -1. At temperature 0 the choice is
// the first of the order. Else
//
//	x_j = logit_j * Inverse(Temperature),  m = max x;  e_j = Exp2((x_j - m)*log2e)
//	u   = kernels.Uniform(Seed, Request, Index)
//
// If m is not finite (a temperature near the smallest numbers), the choice is that of temperature 0, the limit. All
// running sums below are fp32 chains from +0.
//
// Without top-k and top-p: blocks of VocabBlock ids ascending; s_b = tree(e of block b), S_b the running sum of s_b.
// The draw falls in the first block with S_b > u*S_last; from S_(b-1) on, e_j are added in id order and the first j to
// exceed u*S_last is chosen, else (the block's tree exceeds its chain) the last of the block with e_j > 0.
//
// With either: ids are taken in the order; W_i is the running sum of e of the first i. Top-k keeps k ids and total is
// W_k; without it all are kept and total is S_last. Top-p keeps the shortest prefix with W_i/total >= p, at least one
// id. With n ids kept, the first i with W_i > u*W_n is chosen.
func (d *Device) Sample(ids, logits kernels.Tensor, rows []kernels.Sampling) {
	if logits.Rows != len(rows) || ids.Len() != len(rows) || logits.Cols == 0 {
		panic(fmt.Sprintf("cpu: %d samplings of logits %s to %s", len(rows), logits, ids))
	}
	out := ids.I32s()
	d.pool.each(len(rows), 1, func(_, from, to int) {
		s := samplers.Get().(*sampler)
		defer samplers.Put(s)
		for r := from; r < to; r++ {
			s.logits, s.vec, s.block = logits.F32s()[r*logits.Stride:][:logits.Cols], d.vec, d.def.VocabBlock
			out[r] = s.choose(rows[r])
		}
	})
}

// sampler draws from one row of logits.
type sampler struct {
	vec        *vec.Ops
	block      int
	logits     []float32 // [V]
	e          []float32 // [V]
	sums       []float32 // [blocks]: S_b
	tops       []float32 // largest logits of groups of ids
	heap       []int32   // ids that are not yet taken in the order
	kept       []int32
	cumulative []float32 // W_i of kept ids
}

var samplers = sync.Pool{New: func() any { return new(sampler) }}

func (s *sampler) choose(o kernels.Sampling) int32 {
	best := s.first()
	if best < 0 || o.Temperature == 0 {
		return best
	}
	inv := kernels.Inverse(o.Temperature)
	m := float32(s.logits[best] * inv)
	if math.IsInf(float64(m), 0) || m != m {
		return best
	}
	s.weigh(inv, m)
	u := kernels.Uniform(o.Seed, o.Request, o.Index)
	if o.TopK <= 0 && o.TopP >= 1 {
		return s.drawAll(u)
	}
	s.keep(o)
	edge := float32(u * s.cumulative[len(s.cumulative)-1])
	for i, w := range s.cumulative {
		if w > edge {
			return s.kept[i]
		}
	}
	panic(fmt.Sprintf("cpu: u = %v is not below 1", u))
}

// first is the first id of the order, or -1.
func (s *sampler) first() int32 {
	top, best := s.vec.Max(s.logits), int32(-1)
	for j, x := range s.logits {
		if !(x <= math.MaxFloat32) {
			return -1
		}
		if x == top && best < 0 {
			best = int32(j)
		}
	}
	return best
}

// weigh computes e and the running sums over blocks.
func (s *sampler) weigh(inv, m float32) {
	s.e, s.sums = append(s.e[:0], s.logits...), s.sums[:0]
	s.vec.Scale(s.e, inv)
	s.vec.Exp2Sub(s.e, s.e, kernels.Log2E, m)
	sum := float32(0)
	for from := 0; from < len(s.e); from += s.block {
		sum += s.vec.Tree(s.e[from:min(from+s.block, len(s.e))])
		s.sums = append(s.sums, sum)
	}
}

// drawAll draws from the full vocabulary in id order.
func (s *sampler) drawAll(u float32) int32 {
	edge := float32(u * s.sums[len(s.sums)-1])
	b, sum := 0, float32(0)
	for s.sums[b] <= edge {
		sum = s.sums[b]
		b++
	}
	last := -1
	for j := b * s.block; j < min((b+1)*s.block, len(s.e)); j++ {
		if s.e[j] == 0 {
			continue
		}
		last = j
		if sum += s.e[j]; sum > edge {
			break
		}
	}
	return int32(last)
}

// keep fills kept and cumulative with what top-k and top-p leave.
func (s *sampler) keep(o kernels.Sampling) {
	few := 256 // more than top-p takes of most rows
	if o.TopK > 0 {
		few = o.TopK
	}
	for _, n := range []int{few, len(s.logits)} {
		s.heapify(n)
		if s.take(o) {
			return
		}
	}
}

// take pops ids in the order until top-k and top-p have what they want; false if the heap lacks ids for that.
func (s *sampler) take(o kernels.Sampling) bool {
	s.kept, s.cumulative = s.kept[:0], s.cumulative[:0]
	all, want := len(s.heap) == len(s.logits), len(s.logits)
	if o.TopK > 0 {
		want = min(want, o.TopK)
	}
	total, sum := s.sums[len(s.sums)-1], float32(0)
	for len(s.kept) < want && len(s.heap) > 0 {
		id := s.pop()
		sum += s.e[id]
		s.kept, s.cumulative = append(s.kept, id), append(s.cumulative, sum)
		if o.TopK <= 0 && sum/total >= o.TopP {
			return true
		}
	}
	if o.TopK <= 0 {
		return all
	}
	for i, w := range s.cumulative {
		if o.TopP < 1 && w/sum >= o.TopP {
			s.kept, s.cumulative = s.kept[:i+1], s.cumulative[:i+1]
			break
		}
	}
	return true
}

// before reports whether id i comes before j in the order.
func (s *sampler) before(i, j int32) bool {
	return s.logits[i] > s.logits[j] || s.logits[i] == s.logits[j] && i < j
}

// heapify makes a heap, the first of the order on top, of at least the first n ids of the order: those whose logits
// reach the n-th largest of the maxima of about 4n groups of ids, or all. Taking few ids of a large vocabulary costs
// less than a sort.
func (s *sampler) heapify(n int) {
	bound := float32(math.Inf(-1))
	if group := len(s.logits) / (4 * n); group > 1 {
		s.tops = s.tops[:0]
		for from := 0; from < len(s.logits); from += group {
			s.tops = append(s.tops, s.vec.Max(s.logits[from:min(from+group, len(s.logits))]))
		}
		slices.Sort(s.tops)
		bound = s.tops[len(s.tops)-n]
	}
	s.heap = s.heap[:0]
	for i, x := range s.logits {
		if x >= bound {
			s.heap = append(s.heap, int32(i))
		}
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
}

func (s *sampler) pop() int32 {
	top, last := s.heap[0], len(s.heap)-1
	s.heap[0] = s.heap[last]
	s.heap = s.heap[:last]
	s.down(0)
	return top
}

func (s *sampler) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(s.heap) {
			return
		}
		if child+1 < len(s.heap) && s.before(s.heap[child+1], s.heap[child]) {
			child++
		}
		if !s.before(s.heap[child], s.heap[i]) {
			return
		}
		s.heap[i], s.heap[child] = s.heap[child], s.heap[i]
		i = child
	}
}
