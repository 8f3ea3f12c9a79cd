package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Head is the final norm and the projection to the vocabulary. Logits [T, V] of a whole batch are never in memory:
// rows are processed in chunks, forward and backward together.
type Head struct {
	Norm *Norm
	W    *Param // [V, H]; the embedding where they are tied
}

// headChunkGrid is in rows: a multiple of the dot step, so that chunks cut no step of a weight gradient.
const headChunkGrid = 64

// Logits is F32 [T, V] from the last block's output x [T, H].
func (h *Head) Logits(r *parallel.Rank, x kernels.Tensor) kernels.Tensor {
	logits := r.Stack.New(kernels.F32, x.Rows, h.W.W.Rows)
	mark := r.Stack.Mark()
	r.Dev.MatMul(logits, nil, kernels.Term{X: h.Norm.Forward(r, x, nil), W: h.W.W})
	r.Stack.Release(mark)
	return logits
}

// Targets are what the rows of a batch are to predict.
type Targets struct {
	IDs kernels.Tensor // int32 [T]; below 0: none
	// F32 [1, T]: [kernels.Inverse] of the temperature at which each row's log-probability is taken; nil: 1
	Inverse kernels.Tensor
}

func (t Targets) rows(from, to int) Targets {
	t.IDs = t.IDs.ColRange(from, to)
	if !t.Inverse.IsNil() {
		t.Inverse = t.Inverse.ColRange(from, to)
	}
	return t
}

// LogProb writes the log-probability of each row's target to logprob F32 [1, T].
func (h *Head) LogProb(r *parallel.Rank, logprob, x kernels.Tensor, targets Targets, b *Batch) {
	mark := r.Stack.Mark()
	defer r.Stack.Release(mark)
	n := h.Norm.Forward(r, x, nil)
	h.chunks(r.Dev.Spare(), b, func(from, to int) {
		defer r.Stack.Release(r.Stack.Mark())
		logits, stats := h.project(r, n.RowRange(from, to))
		of := targets.rows(from, to)
		r.Dev.LogProb(logprob.ColRange(from, to), stats, logits, of.IDs, of.Inverse)
	})
}

// Loss converts log-probabilities to derivatives of the loss.
type Loss struct {
	// Ahead asks for the log-probabilities of all rows before the first derivative, for which the vocabulary is passed
	// twice.
	Ahead bool
	// Derivative is that by the log-probabilities of rows [from, to), F32 [1, to-from], which have been enqueued when
	// it is called.
	Derivative func(from, to int) kernels.Tensor
}

// Backward writes logprob as LogProb does, asks loss for the derivatives and converts them to d, the gradient of x [T,
// H]. Weight gradients accumulate.
func (h *Head) Backward(r *parallel.Rank, d, logprob, x kernels.Tensor, targets Targets, loss Loss, b *Batch) {
	mark := r.Stack.Mark()
	defer r.Stack.Release(mark)
	if loss.Ahead {
		h.LogProb(r, logprob, x, targets, b)
	}
	var norm NormSaved
	n := h.Norm.Forward(r, x, &norm)
	dn := r.Stack.New(x.DType, x.Rows, x.Cols)
	chunk := func(from, to int, grad kernels.Tensor, goesOn, fresh bool) {
		defer r.Stack.Release(r.Stack.Mark())
		rows := n.RowRange(from, to)
		logits, stats := h.project(r, rows)
		of := targets.rows(from, to)
		r.Dev.LogProb(logprob.ColRange(from, to), stats, logits, of.IDs, of.Inverse)
		dlogits := logits
		if x.DType != kernels.F32 {
			dlogits = r.Stack.New(x.DType, to-from, h.W.W.Rows)
		}
		r.Dev.LogProbBackward(dlogits, loss.Derivative(from, to), stats, logits, of.IDs, of.Inverse)
		r.Dev.MatMulT(dn.RowRange(from, to), nil, kernels.Term{X: dlogits, W: h.W.W})
		if h.W.Trained() {
			g := segmentOf(r, to-from, goesOn)
			g.Fresh = fresh
			r.Dev.WeightGrad(grad, dlogits, rows, g)
		}
	}
	h.segments(r, b, chunk)
	r.Dev.Zero(d)
	h.Norm.Backward(r, d, dn, b, &norm)
}

// segments calls chunk for all rows, in order. A segment of one chunk adds to the gradient; the chunks of a longer one
// are a sum that goes on, which is then added. Where each segment has a gradient of its own, which is 0 so far or
// fresh, that is the sum.
func (h *Head) segments(r *parallel.Rank, b *Batch,
	chunk func(from, to int, grad kernels.Tensor, goesOn, fresh bool)) {
	if !h.W.Trained() {
		h.chunks(r.Dev.Spare(), b, func(from, to int) { chunk(from, to, kernels.Tensor{}, false, false) })
		return
	}
	most, fresh := h.chunkRows(r.Dev.Spare()), h.W.startsAnew()
	b.eachSegment(func(i, from, to int) {
		own, empty := b.gradient(h.W.headGrad(), i), from == to
		all := func(grad kernels.Tensor, goesOn bool) {
			for first := fresh; from < to; from, first = from+most, false {
				chunk(from, min(from+most, to), grad, goesOn, first)
			}
		}
		switch {
		case to-from <= most:
			all(own, false)
		case b.apart():
			all(own, true)
		default:
			if fresh { // 0 and a sum of -0 are 0, so the sum can't be what is stored
				r.Dev.Zero(own)
				fresh = false
			}
			sumSegment(r, own, func(sum kernels.Tensor) { all(sum, true) })
		}
		fresh = fresh && (empty || b.apart())
	})
}

func (h *Head) project(r *parallel.Rank, n kernels.Tensor) (logits, stats kernels.Tensor) {
	logits = r.Stack.New(kernels.F32, n.Rows, h.W.W.Rows)
	stats = r.Stack.New(kernels.F32, n.Rows, 2)
	r.Dev.MatMul(logits, nil, kernels.Term{X: n, W: h.W.W})
	return logits, stats
}

// chunkRows is how many rows have logits of at most so many bytes, on the grid.
func (h *Head) chunkRows(bytes int) int {
	return max(1, bytes/4/h.W.W.Rows/headChunkGrid) * headChunkGrid
}

// ChunkRows is how many rows of logits are held at a time.
func (h *Head) ChunkRows(r *parallel.Rank) int { return h.chunkRows(r.Dev.Spare()) }

// chunks cuts the rows of the batch on the grid.
func (h *Head) chunks(bytes int, b *Batch, body func(from, to int)) {
	for from, rows := 0, h.chunkRows(bytes); from < b.Rows(); from += rows {
		body(from, min(from+rows, b.Rows()))
	}
}
