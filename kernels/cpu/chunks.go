package cpu

import (
	"fmt"
	"sync"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// chunked is one call of a recurrence by rule 4 of the definition (kernels.Recurrent): the delta rule, or a state space
// where rule is nil.
type chunked struct {
	d     *Device
	shape kernels.Recurrence
	group int // heads of values that share a key head
	// Inputs. Keys and queries are [T, KeyHeads*KeyDim], values [T, Heads*ValueDim], g [T, Heads].
	q, k, v matrix
	g       kernels.Tensor
	rule    *deltaRule
	space   *stateSpace
	state   *kernels.ChunkState // nil: spans start at position 0
}

// deltaRule and stateSpace are the inputs of one kind only: beta before its sigmoid [T, Heads]; steps dt [T, Heads] and
// the skip factor of each head.
type (
	deltaRule  struct{ b matrix }
	stateSpace struct {
		dt   kernels.Tensor
		skip []float32
	}
)

// headState is the state of one head of values and the rows of its chunk: slices of a slot, or of the scratch.
type headState struct {
	s []float32 // [KeyDim, ValueDim]
	n []float32 // [ChunkRows, ValueDim]
	c []float32 // [ChunkRows]
}

// chunkScratch is a goroutine's memory for the heads of one key head.
type chunkScratch struct {
	mm       gemm.Scratch
	own      []float32   // k and heads of sequences without a slot
	k        []float32   // [ChunkRows, KeyDim]: the chunk's keys
	heads    []headState // [group]
	q        []float32   // [rows, KeyDim]; rows are those of a piece of the chunk, cols its last row and all before it
	qq, kk   []float32   // [rows, cols]: dots of queries and keys with keys
	rsq, rsk []float32   // [rows]: 1/length of q and k before they were normalised
	pieceScratch
	grad chunkGradScratch
}

// pieceScratch is of one head.
type pieceScratch struct {
	v, h, o []float32 // [rows, ValueDim]: values, k S, output
	e, beta []float32 // [rows]
	g, m    []float32 // [rows, cols]: G and -M, or G and P
	scaled  []float32 // [rows, KeyDim]
}

var chunkScratches = sync.Pool{New: func() any { return new(chunkScratch) }}

func (op *chunked) check(name string, l *kernels.Layout, values ...kernels.Tensor) {
	r := op.shape
	bad := r.KeyHeads <= 0 || r.Heads%r.KeyHeads != 0 || op.q.cols != r.KeyHeads*r.KeyDim || op.k.cols != op.q.cols ||
		op.v.cols != r.Heads*r.ValueDim
	for _, t := range values {
		bad = bad || t.Rows != op.v.rows || t.Cols != op.v.cols && t.Cols != r.Heads
	}
	for _, s := range l.Spans {
		bad = bad || op.state == nil && s.Pos != 0 || s.Row+s.Rows > op.v.rows
	}
	if bad {
		panic(fmt.Sprintf("cpu: %s %+v of %d rows, queries of %d columns, keys %d, values %d, others %v", name, r,
			op.v.rows, op.q.cols, op.k.cols, op.v.cols, values))
	}
}

// eachKeyHead calls body for every span and key head.
func (op *chunked) eachKeyHead(l *kernels.Layout, body func(s *kernels.Span, head int, w *chunkScratch)) {
	n := op.shape.KeyHeads
	op.d.pool.each(len(l.Spans)*n, 1, func(_, from, to int) {
		w := chunkScratches.Get().(*chunkScratch)
		defer chunkScratches.Put(w)
		for i := from; i < to; i++ {
			body(&l.Spans[i/n], i%n, w)
		}
	})
}

// run writes the rows of all spans to out and moves the states.
func (op *chunked) run(out kernels.Tensor, l *kernels.Layout) {
	to := op.d.matrix(out)
	op.eachKeyHead(l, func(s *kernels.Span, head int, w *chunkScratch) {
		op.open(s, head, w)
		op.eachPiece(s, func(row, from, n int, closes bool) {
			op.keys(w, row, head, from, n)
			for i := range op.group {
				h := head*op.group + i
				op.rows(w, i, row, h, from, n)
				op.outputs(w, i, h, from, n)
				for r := range n {
					to.storeHead(row+r, h, w.o[r*op.shape.ValueDim:][:op.shape.ValueDim])
				}
				if closes {
					op.advance(w, i, from+n)
				}
			}
		})
	})
}

// eachPiece cuts a span at multiples of ChunkRows: rows [row, row+n) of the batch are rows from, from+1, ... of their
// chunk, which ends with them where closes is set.
func (op *chunked) eachPiece(s *kernels.Span, body func(row, from, n int, closes bool)) {
	size := op.d.def.ChunkRows
	for r := 0; r < s.Rows; {
		from := (s.Pos + r) % size
		n := min(size-from, s.Rows-r)
		body(s.Row+r, from, n, from+n == size)
		r += n
	}
}

// open points the scratch at the state of a span's heads: that of its slot, or a fresh one.
func (op *chunked) open(s *kernels.Span, head int, w *chunkScratch) {
	r, size := op.shape, op.d.def.ChunkRows
	kLen, sLen, nLen := size*r.KeyDim, r.KeyDim*r.ValueDim, size*r.ValueDim
	w.heads = w.heads[:0]
	if op.state == nil {
		w.own = sized(w.own, kLen+op.group*(sLen+nLen+size))
		rest := w.own
		take := func(n int) []float32 {
			x := rest[:n:n]
			rest = rest[n:]
			return x
		}
		w.k = take(kLen)
		for range op.group {
			w.heads = append(w.heads, headState{s: take(sLen), n: take(nLen), c: take(size)})
		}
	} else {
		w.k = slotPart(op.state.K, s.Slot, head, kLen)
		for h := head * op.group; h < (head+1)*op.group; h++ {
			w.heads = append(w.heads, headState{slotPart(op.state.S, s.Slot, h, sLen), slotPart(op.state.N, s.Slot, h,
				nLen), slotPart(op.state.C, s.Slot, h, size)})
		}
	}
	if s.Pos == 0 {
		for _, h := range w.heads {
			clear(h.s)
		}
	}
}

// slotPart is part i of n elements of a slot.
func slotPart(t kernels.Tensor, slot, i, n int) []float32 {
	return t.Group(slot).F32s()[i*n : (i+1)*n : (i+1)*n]
}

// keys loads queries and keys of a piece and computes their dots with the chunk's keys up to its end.
func (op *chunked) keys(w *chunkScratch, row, head, from, n int) {
	dim, cols := op.shape.KeyDim, from+n
	w.q, w.qq, w.kk = sized(w.q, n*dim), sized(w.qq, n*cols), sized(w.kk, n*cols)
	w.rsq, w.rsk = sized(w.rsq, n), sized(w.rsk, n)
	k := w.k[from*dim : cols*dim]
	for i := range n {
		op.q.copyHead(w.q[i*dim:][:dim], row+i, head)
		op.k.copyHead(k[i*dim:][:dim], row+i, head)
		if op.rule != nil {
			w.rsq[i], w.rsk[i] = op.normalise(w.q[i*dim:][:dim]), op.normalise(k[i*dim:][:dim])
			op.d.vec.Scale(w.q[i*dim:][:dim], queryScale(dim))
		}
	}
	all := transposed(matrixOf(w.k, dim))
	clear(w.qq)
	op.product(w, w.qq, n, cols, dim, matrixOf(w.q, dim), all)
	if op.rule != nil {
		clear(w.kk)
		op.product(w, w.kk, n, cols, dim, matrixOf(k, dim), all)
	}
}

// rows computes c, E, G and n of a piece of one head; of the delta rule also h = k S, beta and -M.
func (op *chunked) rows(w *chunkScratch, i, row, head, from, n int) {
	dim, st := op.shape.ValueDim, &w.heads[i]
	op.decays(w, st.c, row, head, from, n)
	w.v = sized(w.v, n*dim)
	for r := range n {
		op.v.copyHead(w.v[r*dim:][:dim], row+r, head)
	}
	if op.rule != nil {
		op.corrections(w, st, row, head, from, n)
		return
	}
	dt := op.space.dt
	for r := range n {
		op.d.vec.ScaleTo(st.n[(from+r)*dim:][:dim], w.v[r*dim:][:dim], dt.F32s()[(row+r)*dt.Stride+head])
	}
}

// decays computes c, E and G of a piece. Columns of G after a row's own are not written.
func (op *chunked) decays(w *chunkScratch, c []float32, row, head, from, n int) {
	cols, g := from+n, op.g.F32s()
	w.e, w.g = sized(w.e, n), sized(w.g, n*cols)
	for r := range n {
		before := float32(0)
		if from+r > 0 {
			before = c[from+r-1]
		}
		c[from+r] = before + float32(g[(row+r)*op.g.Stride+head]*kernels.Log2E)
		op.d.vec.Exp2Sub(w.g[r*cols:][:from+r+1], c[:from+r+1], -1, c[from+r])
	}
	op.d.vec.Exp2Sub(w.e, c[from:cols], 1, 0)
}

// outputs computes o of a piece, the skip of a state space included.
func (op *chunked) outputs(w *chunkScratch, i, head, from, n int) {
	keyDim, dim, cols, st := op.shape.KeyDim, op.shape.ValueDim, from+n, &w.heads[i]
	w.o, w.m = sized(w.o, n*dim), sized(w.m, n*cols)
	clear(w.o)
	op.product(w, w.o, n, dim, keyDim, matrixOf(w.q, keyDim), matrixOf(st.s, dim))
	for r := range n {
		op.d.vec.Scale(w.o[r*dim:][:dim], w.e[r])
		p := w.m[r*cols:][:cols]
		op.d.vec.Mul(p[:from+r+1], w.qq[r*cols:][:from+r+1], w.g[r*cols:][:from+r+1])
		clear(p[from+r+1:])
	}
	op.product(w, w.o, n, dim, cols, matrixOf(w.m, cols), matrixOf(st.n, dim))
	if op.space != nil {
		for r := range n {
			op.d.vec.ScaleAdd(w.o[r*dim:][:dim], 1, w.v[r*dim:][:dim], op.space.skip[head])
		}
	}
}

// advance moves a head's state past a chunk of n rows.
func (op *chunked) advance(w *chunkScratch, i, n int) {
	keyDim, dim, st := op.shape.KeyDim, op.shape.ValueDim, &w.heads[i]
	w.scaled, w.e = sized(w.scaled, n*keyDim), sized(w.e, n)
	op.d.vec.Exp2Sub(w.e, st.c[:n], -1, st.c[n-1])
	for r := range n {
		op.d.vec.ScaleTo(w.scaled[r*keyDim:][:keyDim], w.k[r*keyDim:][:keyDim], w.e[r])
	}
	op.d.vec.Scale(st.s, op.d.vec.Exp2(st.c[n-1]))
	op.product(w, st.s, keyDim, dim, n, transposed(matrixOf(w.scaled, keyDim)), matrixOf(st.n, dim))
}

// product continues c [m, n], contiguous, by fma over the k columns of a times the rows of b.
func (op *chunked) product(w *chunkScratch, c []float32, m, n, k int, a, b gemm.View) {
	op.d.fma.Tile(&w.mm, c, n, m, n, k, a, b)
}

// matrixOf is a view of contiguous rows of cols columns.
func matrixOf(x []float32, cols int) gemm.View { return gemm.View{X: x, RS: cols, CS: 1} }
