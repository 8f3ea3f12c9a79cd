package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// codedCase is keys and values of a shape of attention.
type codedCase struct {
	kernels.Attn
	absorbed bool
	dtype    kernels.DType
}

var codedCases = []codedCase{
	{Attn: kernels.Attn{Heads: 6, KVHeads: 3, HeadDim: 128, ValueDim: 128}},
	{Attn: kernels.Attn{Heads: 4, KVHeads: 2, HeadDim: 48, ValueDim: 24}},
	{Attn: kernels.Attn{Heads: 2, KVHeads: 1, HeadDim: 32, ValueDim: 80}},
	{Attn: kernels.Attn{Heads: 8, KVHeads: 1, HeadDim: 40 + 12, ValueDim: 40}, absorbed: true},
	{Attn: kernels.Attn{Heads: 2, KVHeads: 1, HeadDim: 64, ValueDim: 64}, absorbed: true},
}

// stored are pages of drawn keys and values, in codes and as numbers that are rounded before.
func (c codedCase) stored(dev *Device, rng *rand.Rand, l *kernels.Layout, pages, pageRows int,
	draw func(cols int) kernels.Tensor) (codes, numbers kernels.KV) {
	k, n := draw(c.KVHeads*c.HeadDim), pages*pageRows
	v := k.ColRange(0, min(k.Cols, c.ValueDim))
	if !c.absorbed {
		v = draw(c.KVHeads * c.ValueDim)
	}
	codes = kernels.NewQuantizedKV(kernels.NewArena(dev), c.dtype, c.Attn, c.absorbed, n, pageRows)
	numbers = kernels.KV{K: strided(rng, c.dtype, 1, n, c.KVHeads*c.HeadDim, 0), PageRows: pageRows}
	if c.absorbed {
		numbers.V = numbers.K.ColRange(0, c.ValueDim)
	} else {
		numbers.V = strided(rng, c.dtype, 1, n, c.KVHeads*c.ValueDim, 0)
	}
	dev.StoreKV(codes, k, v, l)
	if !c.absorbed {
		dev.FakeQuantizeHeads(k, c.HeadDim)
	}
	dev.FakeQuantizeHeads(v, c.ValueDim)
	dev.StoreKV(numbers, k, v, l)
	return codes, numbers
}

// Pages in codes hold the numbers on every bit, whatever their size: ties, subnormals, zeros, NaN and infinities among
// them.
func TestPagesInCodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 42))
	for _, dev := range devices(t, kernels.Default()) {
		for _, c := range codedCases {
			for _, c.dtype = range []kernels.DType{kernels.F32, kernels.BF16} {
				const n = 150
				l := &kernels.Layout{Spans: []kernels.Span{{Rows: 90, Pages: []int32{7, 3, 0, 9, 11, 2}},
					{Row: 90, Rows: 60, Pages: []int32{5, 4, 1, 10}}}, Segments: []int32{0, n}}
				codes, numbers := c.stored(dev, rng, l, 12, 16, func(cols int) kernels.Tensor {
					return oddNumbers(rng, c.dtype, 1, n, cols, 8)
				})
				op := dev.newAttention(numbers.K, numbers.K, numbers.K, codes, c.Attn)
				for _, s := range l.Spans {
					for pos := range s.Rows {
						row := cacheRow(codes, &s, pos)
						for h := range c.KVHeads {
							same := sameHead(dev, numbers.K, op.keys, row, h, c.HeadDim) &&
								sameHead(dev, numbers.V, op.values, row, h, c.ValueDim)
							if !same {
								t.Fatalf("%s, %+v: row %d, head %d differs", dev.Name(), c, row, h)
							}
						}
					}
				}
			}
		}
	}
}

// sameHead compares a head of a row as numbers and from codes.
func sameHead(dev *Device, numbers kernels.Tensor, codes *codedHeads, row, head, width int) bool {
	got, want := make([]float32, width), make([]float32, width)
	m := dev.matrix(numbers)
	m.copyHead(want, row, head)
	codes.copyRows(dev.mm, new(gemm.Scratch), got, row, 1, head)
	for i, x := range got {
		if math.Float32bits(x) != math.Float32bits(want[i]) {
			return false
		}
	}
	return true
}

// Attention over pages in codes has the bits of attention over their numbers: of all keys and of lists.
func TestAttentionOfCodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(43, 44))
	for _, c := range codedCases {
		for dtype, dot := range map[kernels.DType]kernels.DotMode{kernels.F32: kernels.DotFMA,
			kernels.BF16: kernels.DotTC16} {
			def := kernels.Default()
			// a split begins within a page and ends in another, whose rows do not follow
			def.Dot, def.KeySplit, c.dtype, c.Scale = dot, 64, dtype, 0.2
			for _, dev := range devices(t, def) {
				const n = 70
				normal := func(cols int) kernels.Tensor { return strided(rng, dtype, 1, n, cols, 8) }
				l := &kernels.Layout{Spans: []kernels.Span{{Rows: n, Pages: []int32{2, 1, 0}}}, Segments: []int32{0, n}}
				codes, numbers := c.stored(dev, rng, l, 3, 33, normal)
				q, lists := normal(c.Heads*c.HeadDim), make([]int32, 0, n*8)
				for r := range n {
					for i := range 8 {
						j := r/8*i + i
						if j > r {
							j = -1
						}
						lists = append(lists, int32(j))
					}
				}
				selected := kernels.WrapI32(lists)
				selected.Rows, selected.Cols, selected.Stride = n, 8, 8
				attend := func(kv kernels.KV) string {
					out := strided(rng, dtype, 1, n, c.Heads*c.ValueDim, 0)
					lse := strided(rng, kernels.F32, 1, n, c.Heads, 0)
					dev.Attention(out, lse, q, kv, l, c.Attn)
					all := fmt.Sprint(out.Raw(), lse.Raw())
					dev.SparseAttend(out, lse, q, kv, selected, l, c.Attn)
					return all + fmt.Sprint(out.Raw(), lse.Raw())
				}
				if attend(codes) != attend(numbers) {
					t.Errorf("%s, %+v: differs", dev.Name(), c)
				}
			}
		}
	}
}
