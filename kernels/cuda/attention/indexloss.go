//go:build cuda

package attention

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// IndexTarget adds what the heads of a layer of attention give each entry to target F32 [T, entries]; q, k and lse as
// in Attention, indices int32 [T, TopK] or nil: all keys.
func (d *Ops) IndexTarget(target, q, k, lse, indices kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	mustEntries(target, indices, l)
	mustAttend(a, q, k)
	if !SupportsSparse(a) {
		panic(kernels.Fault{Err: fmt.Errorf("indexer targets on the GPU support absorbed heads of %v, not %+v",
			headDimsAbsorbed, a)})
	}
	d.targetAbsorbed(target, q, k, lse, indices, l, a)
}

// IndexLoss converts target F32 [T, entries] to the gradient of loss by the scores, and writes loss F32 [1, T]. q
// [T, Heads*Dim], weights F32 [T, Heads], k [T, Dim].
func (d *Ops) IndexLoss(loss, target, q, weights, k, indices kernels.Tensor, l *kernels.Layout, x kernels.Index) {
	mustEntries(target, indices, l)
	mustIndexer(x, weights, q, k)
	s, _ := d.listed(k, indices, l, x)
	for _, c := range s.calls {
		s.multiply(c, q, k)
		launchIndexLoss(d.Context, [3]int{c.rows, 1, 1}, definitionLanes, 0, loss, target, s.dots, weights, c.rowsAt,
			x.Heads, s.topK, target.Stride, weights.Stride, float32(x.Scale))
	}
}

// SupportsIndexerLoss tells whether the gradients of an indexer are written for a shape.
func SupportsIndexerLoss(x kernels.Index) bool {
	return SupportsIndex(x) && x.Heads <= attentionRows
}

// mustIndexer panics with what the kernels cannot do; activations [T, Heads*Dim] or [T, Dim].
func mustIndexer(x kernels.Index, weights kernels.Tensor, activations ...kernels.Tensor) {
	driver.MustBF16(activations...)
	bad := !SupportsIndexerLoss(x) || weights.Cols != x.Heads || weights.DType != kernels.F32
	for i, t := range activations {
		bad = bad || !driver.Aligned16(t) || t.Cols != []int{x.Heads * x.Dim, x.Dim}[i%2]
	}
	if bad {
		panic(kernels.Fault{Err: fmt.Errorf("indexer gradients on the GPU support up to %d heads of %v, "+
			"not %+v on %v", attentionRows, indexDims, x, activations)})
	}
}

// mustEntries panics if there is no place for what each entry has. Entries are of rows whose sequences begin in the
// batch.
func mustEntries(t, indices kernels.Tensor, l *kernels.Layout) {
	entries := longest(l)
	if !indices.IsNil() {
		entries = min(entries, indices.Cols)
	}
	bad := t.DType != kernels.F32 || t.Rows < l.Rows() || t.Cols < entries || !indices.IsNil() &&
		(indices.DType != kernels.I32 || indices.Rows < l.Rows())
	for _, s := range l.Spans {
		bad = bad || s.Pos != 0
	}
	if bad {
		panic(fmt.Sprintf("cuda: %s for the entries of %d rows with lists %s", t, l.Rows(), indices))
	}
}
