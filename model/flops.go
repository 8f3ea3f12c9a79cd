package model

import "lockstep/kernels"

// Extent is the size of a training batch: Rows in sequences of Length.
type Extent struct{ Rows, Length int }

// keys is the mean number of keys that a row reads; window and most are upper bounds, 0: none.
func (e Extent) keys(window, most int) float64 {
	n := e.Length
	for _, bound := range []int{window, most} {
		if bound > 0 {
			n = min(n, bound)
		}
	}
	if n == 0 {
		return 0
	}
	return float64(n) * (float64(e.Length-n) + float64(float64(n+1)/2)) / float64(e.Length)
}

// attention is the FLOPs of scores and values; most bounds the keys of a row, 0: unbounded.
func (e Extent) attention(a kernels.Attn, most int) float64 {
	return 2 * float64(e.Rows) * e.keys(a.Window, most) * float64(a.Heads*(a.HeadDim+a.Values()))
}

// recurrence is the FLOPs of a recurrence by chunks: products within a chunk and with the state of each head, for each
// row.
func (e Extent) recurrence(s kernels.Recurrence) float64 {
	chunk := float64(kernels.Default().ChunkRows)
	k, v := float64(s.KeyDim), float64(s.ValueDim)
	return 2 * float64(e.Rows) * float64(s.Heads) * (float64(chunk*(k+v)) + float64(2*k*v))
}

// work is what a forward computes, in FLOPs of matrix products. Operations bound by memory are left out.
type work struct {
	results []result // those that may be kept, in the order of Forward
	output  float64  // for the layer's output alone
	again   float64  // in every recomputation
	once    float64  // in none
}

// result is a result that may be kept, with the FLOPs that compute it.
type result struct {
	save    Save
	tensors []shape
	flops   float64
}

// shape is that of a kept tensor.
type shape struct {
	dtype      kernels.DType
	rows, cols int
}

// bytes is what the result takes of an arena.
func (res result) bytes() (n int) {
	for _, t := range res.tensors {
		n += kernels.ArenaBytes(t.dtype, t.rows, t.cols)
	}
	return n
}

// result adds one that may be kept.
func (w *work) result(s Save, flops float64, tensors ...shape) {
	w.results = append(w.results, result{s, tensors, flops})
}

// product adds the output of a projection.
func (w *work) product(s Save, l *Linear, rows int) {
	w.result(s, l.flops(rows), shape{l.W.W.DType, rows, l.W.W.Rows})
}

// add adds the work of a layer within a layer.
func (w *work) add(v work) {
	w.results = append(w.results, v.results...)
	w.output, w.again, w.once = w.output+v.output, w.again+v.again, w.once+v.once
}

// flops is that of the product with the weight of one group for each row.
func (l *Linear) flops(rows int) float64 {
	return float64(2 * float64(rows) * float64(l.W.W.Rows) * float64(l.W.W.Cols))
}

// readsInput tells whether a gradient of the projection reads its input.
func (l *Linear) readsInput() bool { return l.W.Trained() || !l.A.IsNil() }

// work is that of the block's sublayers, with the residual sums between them; the output of the last
// has no other reader.
func (bl Block) work(d kernels.DType, hidden int, e Extent) (all work) {
	for i, sub := range bl {
		w := sub.Layer.work(e)
		if i < len(bl)-1 {
			all.result(SaveResidual, w.output, shape{d, e.Rows, hidden})
			w.output = 0
		}
		all.add(w)
	}
	return all
}
