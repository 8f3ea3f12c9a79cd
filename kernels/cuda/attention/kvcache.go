//go:build cuda

package attention

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// StoreKV writes rows k, v [T, KVHeads*HeadDim] to the pages of their spans. Where the cache's values are columns of
// its keys, those columns are written once: from v. Pages in codes take codes (kvcodes.go).
func (d *Ops) StoreKV(cache kernels.KV, k, v kernels.Tensor, l *kernels.Layout) {
	driver.MustBF16(k, v)
	to := d.stored.of(cache.PageRows, l, 0, func() []int32 { return cacheRows(l, cache.PageRows) })
	if cache.Codes != nil {
		d.storeCodes(cache, k, v, to)
		return
	}
	driver.MustBF16(cache.K, cache.V)
	switch {
	case !sameRows(cache.K, cache.V):
	case sameRows(k, v):
		v.Cols = 0
	default:
		cache.K, k = cache.K.ColRange(v.Cols, k.Cols), k.ColRange(v.Cols, k.Cols)
	}
	launchStoreKv(d.Context, driver.PartGrid(rowsMoved, len(to), k.Cols, v.Cols), driver.WarpThreads, 0, cache.K,
		cache.V,
		k, v, driver.Stage(d.Context, to), len(to), k.Cols, v.Cols, cache.K.Stride, cache.V.Stride, k.Stride, v.Stride)
}

// cacheRows are the rows of the cache for the rows of a batch.
func cacheRows(l *kernels.Layout, pageRows int) []int32 {
	to := make([]int32, l.Rows())
	for _, s := range l.Spans {
		for i := range s.Rows {
			pos := s.Pos + i
			to[s.Row+i] = s.Pages[pos/pageRows]*int32(pageRows) + int32(pos%pageRows)
		}
	}
	return to
}
