//go:build cuda

package attention

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/quant"
)

// codedPages are pages of a shape in codes, as operands: codes and scales of keys and of values, rotated columns. What
// lies there at first is no number.
type codedPages struct {
	a              kernels.Attn
	absorbed       bool
	rows, pageRows int
}

func (p codedPages) operands() (x []cudatest.Operand) {
	bytes := func(cols int) {
		x = append(x, cudatest.Operand{DType: kernels.U8, Groups: 1, Rows: p.rows, Cols: cols, Stride: cols,
			Raw: slices.Repeat([]byte{255}, p.rows*cols)})
	}
	for _, width := range []int{p.a.HeadDim, p.a.Values()} {
		if p.absorbed {
			width = p.a.Values()
		}
		bytes(p.a.KVHeads * width)
		bytes(p.a.KVHeads * quant.MXFP8.Format().Blocks(width))
	}
	return append(x, cudatest.Normal(kernels.BF16, p.rows, p.a.HeadDim, 1)) // more columns than are rotated
}

// of are the pages that the operands are.
func (p codedPages) of(x []kernels.Tensor) kernels.KV {
	c := &kernels.KVCodes{KScales: x[1], VScales: x[3], DType: kernels.BF16, Heads: p.a.KVHeads}
	if !p.absorbed {
		return kernels.KV{K: x[0], V: x[2], PageRows: p.pageRows, Codes: c}
	}
	c.KScales, c.Rotated = c.VScales, x[4].ColRange(0, p.a.HeadDim-p.a.Values())
	return kernels.KV{K: x[2], V: x[2], PageRows: p.pageRows, Codes: c}
}

// codedAttention compares pages in codes that StoreKV fills, cut by cut, and attention to them: of all keys, or topK.
// Every row of a span is stored, also those that another call would have stored before.
func codedAttention(t *testing.T, a kernels.Attn, l *kernels.Layout, pages, pageRows, topK int) {
	t.Helper()
	p := codedPages{a, Absorbed(a), pages * pageRows, pageRows}
	all, stored := &kernels.Layout{}, 0 // of all positions, which StoreKV takes
	for _, s := range l.Spans {
		all.Spans = append(all.Spans, kernels.Span{Row: stored, Rows: s.Pos + s.Rows, Pages: s.Pages})
		stored += s.Pos + s.Rows
	}
	all.Segments = []int32{0, int32(stored)}
	// scales of all sizes: a sequence of subnormal numbers, one beyond what one factor of bf16 decodes, rows of zeros
	numbers := func(cols int) (x cudatest.Operand) {
		for i, s := range all.Spans {
			part := cudatest.Strided(kernels.BF16, s.Rows, cols, []float64{1, 0x1p-130, 0x1p17}[i%3])
			clear(part.Raw[s.Rows/3*2*part.Stride : (s.Rows/3+1)*2*part.Stride])
			x = cudatest.Operand{DType: part.DType, Groups: 1, Rows: stored, Cols: cols, Stride: part.Stride,
				Raw: append(x.Raw, part.Raw...)}
		}
		return x
	}
	rows := l.Rows()
	x := []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, a.Heads*a.Values(), 1),
		cudatest.Normal(kernels.F32, rows, a.Heads, 1), cudatest.Normal(kernels.BF16, rows, a.Heads*a.HeadDim, 1),
		numbers(a.KVHeads * a.HeadDim), numbers(a.KVHeads * a.Values()), cudatest.Lists(l, max(topK, 1), false)}
	cudatest.Both(t, fmt.Sprintf("codes, %+v, pages of %d, lists of %d", a, pageRows, topK), append(x, p.operands()...),
		func(d kernels.Device, x []kernels.Tensor) {
			kv, v := p.of(x[6:]), x[4]
			if p.absorbed {
				v = x[3].ColRange(0, a.Values())
			}
			d.StoreKV(kv, x[3], v, all)
			if topK == 0 {
				d.Attention(x[0], x[1], x[2], kv, l, a)
			} else {
				d.(kernels.SparseAttention).SparseAttend(x[0], x[1], x[2], kv, x[5], l, a)
			}
		})
}

// Pages in codes and what attention reads of them: every width of heads, numbers of queries of each kernel, pages of
// several sizes, windows, cuts of a prefill and single rows; splits of keys, the kernels for cards without wgmma and a
// workspace that holds one KV head.
func TestAttentionOfCodes(t *testing.T) {
	heads := func(t *testing.T, dims [][2]int) {
		for i, dims := range dims {
			for j, spans := range [][]int{nil, {3, 1, 20, 1}, {1, 5, 70}, {2, 1, 9}} {
				pageRows := []int{16, 12, 64, 7 - 4*(i%2)}[j] // the last ones are too small for copies of narrow heads
				l, pages := decoded(pageRows, 1, 64, 65, 200, 450)
				if spans != nil {
					l, _, pages = attend(spans, pageRows)
				}
				a := kernels.Attn{Heads: []int{12, 6, 10, 4}[j], KVHeads: 2, HeadDim: dims[0], ValueDim: dims[1],
					Scale: 1 / math.Sqrt(float64(dims[0])), Window: (i + j) % 2 * 70}
				codedAttention(t, a, l, pages, pageRows, 0)
			}
		}
	}
	all := func(t *testing.T) {
		own := make([][2]int, len(headDims))
		for i, dim := range headDims {
			own[i] = [2]int{dim, dim}
		}
		heads(t, own)
		heads(t, headDimsLatent)
		l, _, pages := attend([]int{1, 20, 3}, 16)
		for _, dims := range headDimsAbsorbed {
			for _, topK := range []int{0, 20} {
				codedAttention(t, absorbedShape(dims, 5), l, pages, 16, topK)
			}
		}
	}
	def := cudatest.Card.Definition()
	def.KeySplit = 192
	cudatest.By(t, def, map[string]func(*testing.T){"": all, "portable": func(t *testing.T) {
		defer func(path string) { cudatest.GPU.Path = path }(cudatest.GPU.Path)
		cudatest.GPU.Path = "portable"
		heads(t, headDimsWide)
	}, "small workspace": func(t *testing.T) {
		defer func(room int) { cudatest.GPU.ChunkBytes = room }(cudatest.GPU.ChunkBytes)
		cudatest.GPU.ChunkBytes = 1
		heads(t, headDimsWide)
	}}, func() {})
}
