//go:build cuda

package attention

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
)

// TestAttentionLong: the last rows of 65,536 keys in a batch with shorter sequences, for page sizes, sizes of groups
// and windows. What no position wrote is NaN.
func TestAttentionLong(t *testing.T) {
	for i, s := range []struct{ pageRows, group, kvHeads, rows, window int }{
		{64, 4, 2, 1, 0}, {1, 1, 1, 1, 0}, {7, 3, 1, 2, 0}, {16, 5, 1, 1, 5000}, {100, 7, 1, 4, 0}, {256, 8, 1, 1, 0},
		{48, 12, 1, 2, 0}, {64, 20, 1, 1, 2100}, {33, 1, 3, 9, 0}, {128, 33, 1, 1, 0}, {16, 2, 1, 50, 3000},
		{64, 64, 1, 3, 0},
	} {
		dim := headDims[(i+4)%len(headDims)]
		a := kernels.Attn{Heads: s.group * s.kvHeads, KVHeads: s.kvHeads, HeadDim: dim,
			Scale: 1 / math.Sqrt(float64(dim)), Window: s.window}
		l, rows, pages := &kernels.Layout{}, 0, 0
		for _, keys := range []int{65536, 2048, 2049, 70, 4099} {
			span := kernels.Span{Row: rows, Rows: s.rows, Pos: keys - s.rows}
			for range driver.Blocks(keys, s.pageRows) {
				span.Pages = append(span.Pages, int32(pages))
				pages++
			}
			l.Spans = append(l.Spans, span)
			rows += s.rows
		}
		l.Segments = []int32{0, int32(rows)}
		k, v := cudatest.Normal(kernels.BF16, pages*s.pageRows, s.kvHeads*dim, 1), cudatest.Strided(kernels.BF16,
			pages*s.pageRows,
			s.kvHeads*dim, 1)
		for i := range l.Spans {
			n := &l.Spans[i]
			for _, o := range []cudatest.Operand{k, v} {
				last := int(n.Pages[len(n.Pages)-1])*s.pageRows + (n.Pos+n.Rows-1)%s.pageRows
				end := (int(n.Pages[len(n.Pages)-1]) + 1) * s.pageRows
				for b := 2 * (last + 1) * o.Stride; b < 2*end*o.Stride; b++ {
					o.Raw[b] = 0xff
				}
			}
			cudatest.Rand.Shuffle(len(n.Pages)-1, func(i, j int) { n.Pages[i], n.Pages[j] = n.Pages[j], n.Pages[i] })
		}
		cudatest.Both(t, fmt.Sprintf("%+v", s), []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, a.Heads*dim, 1),
			cudatest.Normal(kernels.F32, rows, a.Heads, 1), cudatest.Normal(kernels.BF16, rows, a.Heads*dim, 2), k, v},
			func(d kernels.Device, x []kernels.Tensor) {
				d.Attention(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4], PageRows: s.pageRows}, l, a)
			})
	}
}

// attend makes a random layout with keys in place or in pages.
func attend(rows []int, pageRows int) (l *kernels.Layout, total, pages int) {
	l = &kernels.Layout{}
	for _, n := range rows {
		s := kernels.Span{Row: total, Rows: n}
		if pageRows > 0 {
			s.Pos = cudatest.Rand.IntN(3 * n)
			for range (s.Pos + n + pageRows - 1) / pageRows {
				s.Pages = append(s.Pages, int32(pages))
				pages++
			}
		}
		l.Spans = append(l.Spans, s)
		total += n
	}
	for _, s := range l.Spans { // pages in any order
		cudatest.Rand.Shuffle(len(s.Pages), func(i, j int) { s.Pages[i], s.Pages[j] = s.Pages[j], s.Pages[i] })
	}
	l.Segments = []int32{0, int32(total)}
	return l, total, pages
}

func TestAttention(t *testing.T) {
	for _, dim := range headDims {
		attentionOf(t, dim)
	}
}

// The kernels for cards without wgmma, of the widths that it takes here.
func TestPortableAttention(t *testing.T) {
	d := cudatest.GPU
	defer func() { d.Path = "" }()
	d.Path = "portable"
	for _, dims := range headDimsWide {
		if slices.Contains(headDims, dims[0]) {
			attentionOf(t, dims[0])
		} else {
			latentOf(t, dims)
		}
	}
}

// attentionOf compares attention of heads of a width: packed sequences and their gradient, and sequences in pages.
func attentionOf(t *testing.T, dim int) {
	t.Helper()
	for _, heads := range [][2]int{{1, 1}, {4, 2}, {6, 1}} {
		for _, window := range []int{0, 70} {
			a := kernels.Attn{Heads: heads[0], KVHeads: heads[1], HeadDim: dim, Scale: 1 / math.Sqrt(float64(dim)),
				Window: window}
			l, rows, _ := attend([]int{1, 64, 100, 7, 300}, 0)
			q, kv := heads[0]*dim, heads[1]*dim
			x := []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, q, 1), cudatest.Normal(kernels.F32, rows,
				heads[0], 1),
				cudatest.Strided(kernels.BF16, rows, q, 1), cudatest.Strided(kernels.BF16, rows, kv, 1),
				cudatest.Normal(kernels.BF16, rows, kv,
					1)}
			cudatest.Both(t, fmt.Sprintf("attention %+v", a), x, func(d kernels.Device, x []kernels.Tensor) {
				d.Attention(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4]}, l, a)
			})
			x = append(x, cudatest.Strided(kernels.BF16, rows, q, 1), cudatest.Normal(kernels.BF16, rows, q, 1),
				cudatest.Normal(kernels.BF16, rows, kv, 1), cudatest.Normal(kernels.BF16, rows, kv, 1))
			cudatest.Both(t, fmt.Sprintf("attention backward %+v", a), x, func(d kernels.Device, x []kernels.Tensor) {
				d.Attention(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4]}, l, a)
				d.AttentionBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4]}, l, a)
			})
			const pageRows = 16
			l, rows, pages := attend([]int{1, 1, 40, 3}, pageRows)
			cudatest.Both(t, fmt.Sprintf("paged %+v", a), []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, q, 1),
				cudatest.Normal(kernels.F32, rows, heads[0], 1), cudatest.Normal(kernels.BF16, rows, q, 1),
				cudatest.Normal(kernels.BF16, rows, kv,
					1), cudatest.Strided(kernels.BF16, rows, kv, 1),
				cudatest.Normal(kernels.BF16, pages*pageRows, kv, 1), cudatest.Normal(kernels.BF16, pages*pageRows, kv,
					1)},
				func(d kernels.Device, x []kernels.Tensor) {
					cache := kernels.KV{K: x[5], V: x[6], PageRows: pageRows}
					d.StoreKV(cache, x[3], x[4], l)
					d.Attention(x[0], x[1], x[2], cache, l, a)
				})
		}
	}
}

// Latent attention: keys and values of other widths, packed and in pages, across the split too.
func TestLatentAttention(t *testing.T) {
	for _, dims := range headDimsLatent {
		latentOf(t, dims)
	}
}

// latentOf compares latent attention of keys and values of two widths.
func latentOf(t *testing.T, dims [2]int) {
	t.Helper()
	for _, heads := range [][2]int{{3, 3}, {4, 2}} {
		a := kernels.Attn{Heads: heads[0], KVHeads: heads[1], HeadDim: dims[0], ValueDim: dims[1],
			Scale: 1 / math.Sqrt(float64(dims[0]))}
		q, k, v, o := a.Heads*dims[0], a.KVHeads*dims[0], a.KVHeads*dims[1], a.Heads*dims[1]
		l, rows, _ := attend([]int{1, 64, 100, 7, 130}, 0)
		cudatest.Both(t, fmt.Sprintf("latent attention %+v", a), []cudatest.Operand{cudatest.Normal(kernels.BF16, rows,
			o, 1),
			cudatest.Normal(kernels.F32, rows, a.Heads, 1), cudatest.Strided(kernels.BF16, rows, q, 1),
			cudatest.Strided(kernels.BF16, rows, k, 1),
			cudatest.Normal(kernels.BF16, rows, v, 1),
			cudatest.Strided(kernels.BF16, rows, o, 1), cudatest.Normal(kernels.BF16, rows, q, 1),
			cudatest.Normal(kernels.BF16, rows, k, 1),
			cudatest.Normal(kernels.BF16, rows, v, 1)},
			func(d kernels.Device, x []kernels.Tensor) {
				kv := kernels.KV{K: x[3], V: x[4]}
				d.Attention(x[0], x[1], x[2], kv, l, a)
				d.AttentionBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], kv, l, a)
			})
		const pageRows = 16
		l, rows, pages := attend([]int{1, 1, 40, 2100}, pageRows)
		cudatest.Both(t, fmt.Sprintf("latent, paged %+v", a), []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, o,
			1),
			cudatest.Normal(kernels.F32, rows, a.Heads, 1), cudatest.Normal(kernels.BF16, rows, q, 1),
			cudatest.Normal(kernels.BF16, rows, k, 1),
			cudatest.Strided(kernels.BF16, rows, v, 1),
			cudatest.Normal(kernels.BF16, pages*pageRows, k, 1), cudatest.Normal(kernels.BF16, pages*pageRows, v, 1)},
			func(d kernels.Device, x []kernels.Tensor) {
				cache := kernels.KV{K: x[5], V: x[6], PageRows: pageRows}
				d.StoreKV(cache, x[3], x[4], l)
				d.Attention(x[0], x[1], x[2], cache, l, a)
			})
	}
}

// Sequences that cross the split of 2048 keys.
func TestAttentionSplits(t *testing.T) {
	for _, window := range []int{0, 3000} {
		attentionSplits(t, window, 2048, 2049, 4200)
	}
}

// attentionSplits compares attention of packed sequences and its gradient.
func attentionSplits(t *testing.T, window int, sequences ...int) {
	t.Helper()
	a := kernels.Attn{Heads: 2, KVHeads: 1, HeadDim: 32, Scale: 0.2, Window: window}
	l, rows, _ := attend(sequences, 0)
	cudatest.Both(t, "splits", []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, 64, 1),
		cudatest.Normal(kernels.F32, rows, 2, 1),
		cudatest.Normal(kernels.BF16, rows, 64, 1), cudatest.Normal(kernels.BF16, rows, 32, 1),
		cudatest.Normal(kernels.BF16, rows, 32, 1),
		cudatest.Normal(kernels.BF16, rows, 64, 1), cudatest.Normal(kernels.BF16, rows, 64, 1),
		cudatest.Normal(kernels.BF16, rows, 32, 1),
		cudatest.Normal(kernels.BF16, rows, 32, 1)},
		func(d kernels.Device, x []kernels.Tensor) {
			kv := kernels.KV{K: x[3], V: x[4]}
			d.Attention(x[0], x[1], x[2], kv, l, a)
			d.AttentionBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], kv, l, a)
		})
}

// TestHeadsOf256: packs of many more tiles than multiprocessors, whose blocks take one after the other, their
// gradients, and queries behind others in pages, over several splits.
func TestHeadsOf256(t *testing.T) {
	def := cudatest.Card.Definition()
	def.KeySplit = 192
	for _, def.Exp2 = range []kernels.Exp2Mode{kernels.Exp2Poly, kernels.Exp2Ex2h} {
		cudatest.By(t, def, map[string]func(*testing.T){string(def.Exp2): headsOf256}, func() {})
	}
}

func headsOf256(t *testing.T) {
	defer func(n int) { cudatest.GPU.Processors = n }(cudatest.GPU.Processors)
	cudatest.GPU.Processors = 5 // so that a block comes back to each slot of its ring
	for _, window := range []int{0, 150} {
		a := kernels.Attn{Heads: 6, KVHeads: 2, HeadDim: 256, Scale: 1. / 16, Window: window}
		q, kv := a.Heads*256, a.KVHeads*256
		sequences := []int{450, 130}
		for range 12 {
			sequences = append(sequences, 11+cudatest.Rand.IntN(4)) // of more pairs than a decoding step has
		}
		l, rows, _ := attend(sequences, 0)
		cudatest.Both(t, fmt.Sprintf("packed, window %d", window), []cudatest.Operand{
			cudatest.Strided(kernels.BF16, rows, q, 1), cudatest.Normal(kernels.F32, rows, a.Heads, 1),
			cudatest.Strided(kernels.BF16, rows, q, 1), cudatest.Normal(kernels.BF16, rows, kv, 1),
			cudatest.Strided(kernels.BF16, rows, kv, 1), cudatest.Strided(kernels.BF16, rows, q, 1),
			cudatest.Normal(kernels.BF16, rows, q, 1), cudatest.Normal(kernels.BF16, rows, kv, 1),
			cudatest.Strided(kernels.BF16, rows, kv, 1)},
			func(d kernels.Device, x []kernels.Tensor) {
				kv := kernels.KV{K: x[3], V: x[4]}
				d.Attention(x[0], x[1], x[2], kv, l, a)
				d.AttentionBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], kv, l, a)
			})
		const pageRows = 12
		l, rows, pages := attend([]int{45, 20, 210}, pageRows)
		cudatest.Both(t, fmt.Sprintf("paged, window %d", window), []cudatest.Operand{
			cudatest.Normal(kernels.BF16, rows, q, 1), cudatest.Normal(kernels.F32, rows, a.Heads, 1),
			cudatest.Normal(kernels.BF16, rows, q, 1), cudatest.Normal(kernels.BF16, pages*pageRows, kv, 1),
			cudatest.Normal(kernels.BF16, pages*pageRows, kv, 1)},
			func(d kernels.Device, x []kernels.Tensor) {
				d.Attention(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4], PageRows: pageRows}, l, a)
			})
	}
}
