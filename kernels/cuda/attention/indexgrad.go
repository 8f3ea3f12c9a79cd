//go:build cuda

package attention

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// IndexBackward takes ds F32 [T, entries] down to dq [T, Heads*Dim], dk [T, Dim] and dweights F32 [T, Heads], which are
// written.
func (d *Ops) IndexBackward(dq, dk, dweights, ds, q, weights, k, indices kernels.Tensor, l *kernels.Layout,
	x kernels.Index) {
	mustEntries(ds, indices, l)
	mustIndexer(x, weights, q, k, dq, dk)
	rows, width := l.Rows(), driver.Blocks(longest(l), keyRows)
	var more []int
	if !indices.IsNil() {
		more = []int{2 * rows * width, rows * width}
	}
	s, parts := d.listed(k, indices, l, x, more...)
	parts = append(parts, 0, 0) // without lists there are none
	masks, firsts := parts[0], parts[1]
	for _, c := range s.calls {
		s.multiply(c, q, k)
		launchIndexGradients(d.Context, driver.WarpGrid(c.rows*x.Heads), driver.WarpThreads, 0, s.weights, dweights,
			s.dots, ds, weights, c.rowsAt, c.rows, x.Heads, s.topK, dweights.Stride, ds.Stride, weights.Stride,
			float32(x.Scale))
		s.along(c, dq, k)
		if masks != 0 {
			s.mark(c, masks, firsts)
		}
	}
	keys := attentionParts(l, attentionRows, false)
	launchIndexDk(d.Context, fmt.Sprintf("_%d", x.Dim), [3]int{len(keys), 1, 1}, attentionThreads,
		2*2*attentionRows*(x.Dim+8), dk, ds, q, weights, k, masks, firsts, driver.Stage(d.Context, keys), x.Heads,
		width, dk.Stride, ds.Stride, q.Stride, weights.Stride, k.Stride, float32(x.Scale))
}
