//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// TestAttentionLong: the last rows of 65,536 keys beside shorter sequences, for page sizes, sizes of groups and
// windows. What no position wrote is NaN.
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
		l.Packs = []int32{0, int32(rows)}
		k, v := normal(kernels.BF16, pages*s.pageRows, s.kvHeads*dim, 1), strided(kernels.BF16, pages*s.pageRows,
			s.kvHeads*dim, 1)
		for i := range l.Spans {
			n := &l.Spans[i]
			for _, o := range []operand{k, v} {
				last := int(n.Pages[len(n.Pages)-1])*s.pageRows + (n.Pos+n.Rows-1)%s.pageRows
				end := (int(n.Pages[len(n.Pages)-1]) + 1) * s.pageRows
				for b := 2 * (last + 1) * o.stride; b < 2*end*o.stride; b++ {
					o.raw[b] = 0xff
				}
			}
			rng.Shuffle(len(n.Pages)-1, func(i, j int) { n.Pages[i], n.Pages[j] = n.Pages[j], n.Pages[i] })
		}
		both(t, fmt.Sprintf("%+v", s), []operand{normal(kernels.BF16, rows, a.Heads*dim, 1),
			normal(kernels.F32, rows, a.Heads, 1), normal(kernels.BF16, rows, a.Heads*dim, 2), k, v},
			func(d kernels.Device, x []kernels.Tensor) {
				d.Attention(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4], PageRows: s.pageRows}, l, a)
			})
	}
}
