//go:build cuda

package attention

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// targets is what layers before may have given entries: nothing, less than a normal number, or much.
func targets(rows, cols int) cudatest.Operand {
	o := cudatest.Strided(kernels.F32, rows, cols, 0)
	for i := range rows * o.Stride {
		v := []float32{0, 1e-41, float32(cudatest.Rand.ExpFloat64()),
			float32(cudatest.Rand.ExpFloat64() * 1e-30)}[cudatest.Rand.IntN(4)]
		binary.LittleEndian.PutUint32(o.Raw[4*i:], math.Float32bits(v))
	}
	return o
}

// indexerCase is operands of the loss of an indexer: on lists unless topK is 0, with queries and keys of three values
// where scarcely, so that products are often 0.
type indexerCase struct {
	l      *kernels.Layout
	a      kernels.Attn
	x      kernels.Index
	topK   int
	scarce bool
}

// operands are target, loss, dq, dk, dweights, a target to learn from; queries, keys and lse of attention; queries,
// keys, weights of the indexer; lists.
func (c indexerCase) operands() []cudatest.Operand {
	rows, a, x, any := c.l.Rows(), c.a, c.x, cudatest.Strided
	if c.scarce {
		any = func(d kernels.DType, rows, cols int, _ float64) cudatest.Operand { return scarce(d, rows, cols, false) }
	}
	entries := longest(c.l)
	if c.topK > 0 {
		entries = c.topK
	}
	const bf16, f32 = kernels.BF16, kernels.F32
	return []cudatest.Operand{targets(rows, entries), cudatest.Normal(f32, 1, rows, 1), cudatest.Strided(bf16, rows,
		x.Heads*x.Dim, 1),
		cudatest.Strided(bf16, rows, x.Dim, 1), cudatest.Strided(f32, rows, x.Heads, 1), targets(rows, entries),
		any(bf16, rows, a.Heads*a.HeadDim, 1), any(bf16, rows, a.KVHeads*a.HeadDim, 1), cudatest.Strided(f32, rows,
			a.Heads, 8),
		any(bf16, rows, x.Heads*x.Dim, 1), any(bf16, rows, x.Dim, 1), any(f32, rows, x.Heads, 1),
		cudatest.Lists(c.l, max(c.topK, 1), false)}
}

// run is one device's.
func (c indexerCase) run(d kernels.Device, t []kernels.Tensor) {
	indices, s := t[12], d.(kernels.IndexerLoss)
	if c.topK == 0 {
		indices = kernels.Tensor{}
	}
	s.IndexTarget(t[0], t[6], t[7], t[8], indices, c.l, c.a)
	s.IndexTarget(t[5], t[6], t[7], t[8], indices, c.l, c.a)
	s.IndexLoss(t[1], t[5], t[9], t[11], t[10], indices, c.l, c.x)
	s.IndexBackward(t[2], t[3], t[4], t[5], t[9], t[11], t[10], indices, c.l, c.x)
}

var indexers = []kernels.Index{
	{Heads: 3, Dim: 16, Scale: 0.25}, {Heads: 5, Dim: 128, Scale: 1 / math.Sqrt(128)}, {Heads: 64, Dim: 16, Scale: 1},
	{Heads: 1, Dim: 128, Scale: 0.1},
}

// Every width of heads, lists that end anywhere in a block or a step and all keys, sequences of one row and more.
func TestIndexLoss(t *testing.T) {
	for i, x := range indexers {
		a := absorbedShape(headDimsAbsorbed[i%3], []int{3, 4, 7, 64}[i])
		for _, topK := range []int{0, 8, 66, 130} {
			l, _, _ := attend([]int{1, 64, 150, 7, 65}, 0)
			c := indexerCase{l, a, x, topK, false}
			cudatest.Both(t, fmt.Sprintf("%+v, %+v, lists of %d", a, x, topK), c.operands(), c.run)
		}
	}
}

// Heads of attention, few and more than a block takes.
func TestIndexLossHeads(t *testing.T) {
	for i, heads := range []int{4, 66, 20} {
		for _, topK := range []int{0, 40} {
			l, _, _ := attend([]int{1, 70, 33}, 0)
			c := indexerCase{l, absorbedShape(headDimsAbsorbed[i], heads), indexers[0], topK, false}
			cudatest.Both(t, fmt.Sprintf("%+v, lists of %d", c.a, topK), c.operands(), c.run)
		}
	}
}

// Products of 0, through which nothing goes back, and scores that are equal.
func TestIndexLossTies(t *testing.T) {
	l, _, _ := attend([]int{70, 33}, 0)
	for i, x := range indexers[:2] {
		for _, topK := range []int{0, 20} {
			c := indexerCase{l, absorbedShape(headDimsAbsorbed[i], 4), x, topK, true}
			cudatest.Both(t, fmt.Sprintf("%+v, lists of %d", x, topK), c.operands(), c.run)
		}
	}
}

// Trees of more than one round of lanes.
func TestIndexLossLong(t *testing.T) {
	for _, topK := range []int{0, 600} {
		c := indexerCase{&kernels.Layout{Spans: []kernels.Span{{Rows: 700}}, Segments: []int32{0, 700}},
			absorbedShape(headDimsAbsorbed[0], 1), indexers[0], topK, false}
		cudatest.Both(t, fmt.Sprintf("700 rows, lists of %d", topK), c.operands(), c.run)
	}
}

// Work that is cut into calls, of a tile each and of a few.
func TestIndexLossCalls(t *testing.T) {
	d := cudatest.GPU
	defer func(room int) { d.ChunkBytes = room }(d.ChunkBytes)
	l, _, _ := attend([]int{5, 150, 64, 90}, 0)
	for _, room := range []int{1, 200 << 10} {
		d.ChunkBytes = room
		for _, topK := range []int{0, 66} {
			c := indexerCase{l, absorbedShape(headDimsAbsorbed[0], 4), indexers[0], topK, false}
			cudatest.Both(t, fmt.Sprintf("room for %d, lists of %d", room, topK), c.operands(), c.run)
		}
	}
}

// Lists of all keys are no lists, to the bit, and others are another result: the comparison can fail.
func TestIndexLossAllKeys(t *testing.T) {
	l, _, _ := attend([]int{70, 130}, 0)
	all := indexerCase{l, absorbedShape(headDimsAbsorbed[0], 2), indexers[1], 130, false}
	none := all
	none.topK = 0
	operands := all.operands()
	if n, at := cudatest.Differences(t, operands, none.run, all.run); n > 0 {
		t.Errorf("lists of all keys: %d bytes differ, first %s", n, at)
	}
	operands[12] = cudatest.Lists(l, 100, false)
	if n, _ := cudatest.Differences(t, operands, none.run, all.run); n == 0 {
		t.Error("lists of some keys are not noticed")
	}
}

// The gradients of a sequence are the same alone and in a batch.
func TestIndexLossComposition(t *testing.T) {
	l, _, _ := attend([]int{149, 1, 150}, 0)
	for _, topK := range []int{0, 40} {
		c := indexerCase{l, absorbedShape(headDimsAbsorbed[0], 2), indexers[0], topK, false}
		alone := func(d kernels.Device, x []kernels.Tensor) {
			for _, s := range l.Spans {
				one, own := c, make([]kernels.Tensor, len(x))
				one.l = &kernels.Layout{Spans: []kernels.Span{{Rows: s.Rows}}, Segments: []int32{0, int32(s.Rows)}}
				for i, t := range x {
					if t.Rows == 1 { // the loss
						own[i] = t.ColRange(s.Row, s.Row+s.Rows)
					} else {
						own[i] = t.RowRange(s.Row, s.Row+s.Rows)
					}
				}
				one.run(d, own)
			}
		}
		if n, at := cudatest.Differences(t, c.operands(), alone, c.run); n > 0 {
			t.Errorf("lists of %d: %d bytes differ, first %s", topK, n, at)
		}
	}
}
