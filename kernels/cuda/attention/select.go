//go:build cuda

package attention

import (
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// indexDims are the columns of an indexer's head that its scores are compiled for.
var indexDims = []int{16, 128}

// SupportsIndex tells whether the selection of keys supports an indexer.
func SupportsIndex(x kernels.Index) bool { return slices.Contains(indexDims, x.Dim) }

// SelectKeys writes the positions of each row's chosen keys, ascending, to indices int32 [T, TopK], -1 behind their
// end. q [T, Heads*Dim], weights F32 [T, Heads].
func (d *Ops) SelectKeys(indices, q, weights kernels.Tensor, keys kernels.KV, l *kernels.Layout, x kernels.Index) {
	driver.MustBF16(q, keys.K)
	if !SupportsIndex(x) || !driver.Aligned16(q) || !driver.Aligned16(keys.K) || indices.Cols != x.TopK ||
		q.Cols != x.Heads*x.Dim || weights.DType != kernels.F32 {
		panic(kernels.Fault{Err: fmt.Errorf("key selection on the GPU supports heads of %v, not %+v on %s and %s",
			indexDims, x, q, keys.K)})
	}
	stride := driver.Blocks(longest(l), selectScoreKeys) * selectScoreKeys
	p := planQueries(d, keys, l, attentionRows, 4*stride)
	scores := d.Scratch(4 * p.mostRows * stride)
	for _, c := range p.calls {
		launchIndexScores(d.Context, fmt.Sprintf("_%d", x.Dim), [3]int{stride / selectScoreKeys, c.tiles, 1},
			selectScoreThreads, 4*attentionRows*2*(x.Dim+8), scores, q, weights, keys.K, c.tilesAt, p.pages, x.Heads,
			x.TopK, stride, q.Stride, weights.Stride, keys.K.Stride, keys.PageRows, float32(x.Scale))
		launchSelectKeys(d.Context, [3]int{c.rows, 1, 1}, selectThreads, 0, indices, scores, c.rowsAt, x.TopK, stride,
			indices.Stride)
	}
}
