package model

import (
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Layer is what a sublayer of a block does to its normed input: attention of some kind, a recurrence, a feed-forward.
// x, y and their gradients are [T, H].
type Layer interface {
	// Forward is y from x. What Backward needs stays on the rank's stack and is returned where k saves it; where it
	// does not (serving, or the first Forward of a block to be recomputed) saved is nil and the caller releases the
	// stack.
	Forward(r *parallel.Rank, x kernels.Tensor, b *Batch, k *Keep) (y kernels.Tensor, saved LayerSaved)
	// Linears are the projections that may carry adapters, in order.
	Linears() []*Linear
	// Idle is the number of weights that one token does not use: those of experts outside its top k.
	Idle() int
	// work is what Forward computes for a batch.
	work(e Extent) work
	// breaks are the rules that apply to the layer, for sequences of at most maxLength positions.
	breaks(maxLength int) []kernels.Break
}

// LayerSaved is what a layer keeps of one Forward for its Backward.
type LayerSaved interface {
	// Backward is dx from dy, for the batch of the Forward. Weight gradients accumulate.
	Backward(r *parallel.Rank, dy kernels.Tensor, b *Batch) (dx kernels.Tensor)
}

// Mixer is a Layer whose rows depend on earlier rows of their sequence: it keeps something of them in a cache, and
// there is at most one in a block.
type Mixer interface {
	Layer
	// NewCache allocates the layer's part of a cache, which it finds in Cache.Layers at its block's number.
	NewCache(mem *kernels.Arena, s CacheSize) LayerCache
	// PageBytes is the memory of one page of so many rows, SlotBytes that of one slot.
	PageBytes(rows int) int
	SlotBytes() int
	// keys is the most keys that a row reads in sequences of at most maxLength positions.
	keys(maxLength int) int
	// contextHeads is how many heads ranks can divide that have rows of a sequence each, with the name of that number
	// in config.json; 0: they divide its rows.
	contextHeads() (n int, key string)
}

// Sublayer is one residual step of a block: y = x + layer(norm(x)).
type Sublayer struct {
	Norm  *Norm
	Layer Layer
}

// Block is one decoder layer of a checkpoint: residual steps one after the other, usually attention and a
// feed-forward.
type Block []Sublayer

// BlockSaved is what Backward needs of a Forward, an entry for each sublayer.
type BlockSaved []SublayerSaved

// SublayerSaved is what Backward of a sublayer needs.
type SublayerSaved struct {
	norm  *Norm
	Norm  NormSaved
	Layer LayerSaved
}

// Forward writes y [T, H] from x [T, H]. Nothing stays on the stack but what k keeps.
func (bl Block) Forward(r *parallel.Rank, y, x kernels.Tensor, b *Batch, k *Keep) BlockSaved {
	if k != nil && k.save != SaveAll {
		k.reserve(r, bl, x)
	}
	mark := r.Stack.Mark()
	saved := bl.forward(r, y, x, b, k)
	if k.saves() {
		return saved
	}
	r.Stack.Release(mark)
	return nil
}

// forward writes y. Where y is the zero Tensor, the output of the last sublayer is not computed.
func (bl Block) forward(r *parallel.Rank, y, x kernels.Tensor, b *Batch, k *Keep) BlockSaved {
	saved := make(BlockSaved, len(bl))
	in := stream{x: x}
	for i, sub := range bl {
		sum, done := y, y.IsNil()
		if i < len(bl)-1 {
			sum, done = k.residual(r, x)
		}
		s := &saved[i]
		s.norm = sub.Norm
		normed := sub.Norm.next(r, &in, &s.Norm)
		k.leaveOut(done)
		if m, ok := sub.Layer.(*MoE); ok && m.addsTo() && !done {
			in.x, s.Layer = m.forward(r, normed, stream{x: in.x, sum: sum}, b, k)
			continue
		}
		var f kernels.Tensor
		if f, s.Layer = sub.Layer.Forward(r, normed, b, k); sum.IsNil() {
			sum = f
		}
		if in = (stream{x: in.x, f: f, sum: sum}); done {
			in = stream{x: sum}
		}
	}
	if !in.f.IsNil() {
		r.Dev.Add(in.sum, in.x, in.f)
	}
	return saved
}

// stream is the residual stream x [T, H] and the output f of a sublayer that is yet to be added to it, in sum; f zero:
// none. Who reads the stream next adds: the norm of the next sublayer, or a layer that has no f, as it computes that.
type stream struct{ x, f, sum kernels.Tensor }

// Backward replaces d, the gradient of y, by the gradient of x.
func (saved BlockSaved) Backward(r *parallel.Rank, d kernels.Tensor, b *Batch) {
	mark := r.Stack.Mark()
	for i := len(saved) - 1; i >= 0; i-- {
		s := &saved[i]
		s.norm.Backward(r, d, s.Layer.Backward(r, d, b), b, &s.Norm)
		r.Stack.Release(mark)
	}
}

// halve makes two blocks of block i: its first sublayer, attention of some kind or a recurrence, and what follows. A
// stage of a pipeline may end between them. Nothing that either computes depends on it.
func (m *Model) halve(i int) error {
	bl := m.Blocks[i]
	if len(bl) < 2 {
		return fmt.Errorf("pipeline.blocks: block %d of %s is one layer, and has no halves: set whole numbers",
			m.Layer(i), m.Family)
	}
	second := slices.Index(m.Params, bl[1].Norm.W) // parameters are in the order of the graph
	for k, p := range m.Params {
		if p.unit > blockUnit(i) || p.unit == blockUnit(i) && k >= second {
			p.unit++
		}
	}
	m.Blocks = slices.Concat(m.Blocks[:i], []Block{bl[:1], bl[1:]}, m.Blocks[i+1:])
	for k := range m.halves {
		if m.halves[k] > i {
			m.halves[k]++
		}
	}
	m.halves = append(m.halves, i)
	slices.Sort(m.halves)
	return nil
}

// HalveBlocks halves all blocks that have halves: to time them, or to compute each by itself again.
func (m *Model) HalveBlocks() {
	for i := len(m.Blocks) - 1; i >= 0; i-- {
		if len(m.Blocks[i]) > 1 {
			if err := m.halve(i); err != nil {
				panic(err)
			}
		}
	}
}

// Layer is the number that block i has in config.json, where the halves of a block are one.
func (m *Model) Layer(i int) int {
	before, _ := slices.BinarySearch(m.halves, i) // blocks whose second half comes before i, or is it
	return i - before
}

// BlocksOf is how many blocks of config.json the blocks [from, to) are.
func (m *Model) BlocksOf(from, to int) (n float64) {
	for i := from; i < to; i++ {
		if _, first := slices.BinarySearch(m.halves, i); first || i > 0 && m.Layer(i) == m.Layer(i-1) {
			n += 0.5
		} else {
			n++
		}
	}
	return n
}

// mixer is the sublayer that keeps a cache, nil where there is none.
func (bl Block) mixer() Mixer {
	for _, sub := range bl {
		if m, ok := sub.Layer.(Mixer); ok {
			return m
		}
	}
	return nil
}

// Norm is RMSNorm over the columns (Zhang & Sennrich, arXiv 1910.07467).
type Norm struct {
	W *Param // [1, n]
	kernels.Norm
}

// NormSaved is what Backward needs.
type NormSaved struct{ X, RStd kernels.Tensor }

// Forward is x / rms(x) * w, [T, n].
func (n *Norm) Forward(r *parallel.Rank, x kernels.Tensor, s *NormSaved) kernels.Tensor {
	y := r.Stack.New(x.DType, x.Rows, x.Cols)
	n.write(r, y, x, s)
	return y
}

// next is Forward of a stream, whose x is the sum then.
func (n *Norm) next(r *parallel.Rank, in *stream, s *NormSaved) kernels.Tensor {
	if in.f.IsNil() {
		return n.Forward(r, in.x, s)
	}
	y, rstd := r.Stack.New(in.x.DType, in.x.Rows, in.x.Cols), r.Stack.New(kernels.F32, 1, in.x.Rows)
	r.Dev.AddRMSNorm(y, in.sum, rstd, in.x, in.f, n.W.W, n.Norm)
	*in, *s = stream{x: in.sum}, NormSaved{X: in.sum, RStd: rstd}
	return y
}

// write is Forward to y.
func (n *Norm) write(r *parallel.Rank, y, x kernels.Tensor, s *NormSaved) {
	rstd := r.Stack.New(kernels.F32, 1, x.Rows)
	r.Dev.RMSNorm(y, rstd, x, n.W.W, n.Norm)
	if s != nil {
		*s = NormSaved{X: x, RStd: rstd}
	}
}

// Backward adds the gradient of x to dx.
func (n *Norm) Backward(r *parallel.Rank, dx, dy kernels.Tensor, b *Batch, s *NormSaved) {
	r.Dev.RMSNormBackward(dx, n.W.Grad, dy, s.X, s.RStd, n.W.W, n.Norm, b.Layout.Segments)
}
