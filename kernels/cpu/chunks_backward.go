package cpu

import "lockstep/kernels"

// The backward of rule 4, chunk by chunk from the last. For one head of a chunk of rows 0 ... L-1, with the names of
// the forward, do_i = dout_i, A the gradient of S' (+0 after a span's last chunk), F_i = Exp2(c_(L-1) - c_i), P_ij =
// dot(q_i, k_j)*G_ij for j <= i and +0 for j > i; "by fma over" continues each element's chain:
//
//	dn_i = F_i*dot(k_i, A), then by fma over rows j ascending with (P_ji, do_j)
//	x_i  = dn_i; delta rule: then by fma over j = L-1 ... i+1 with (-M_ji, x_j)
//	Y_ij = dot(do_i, n_j)*G_ij for j <= i, else +0
//	B_ij = -dot(x_i, n_j)*G_ij for j < i, else +0; X_ij = beta_i*B_ij; y_i = -(beta_i*E_i)*x_i (delta rule; parts with
//	B, X and y are its own)
//	dq_i = E_i*dot(do_i, S^T), then by fma over j with (Y_ij, k_j)
//	dk_i = u_i = F_i*dot(n_i, A^T), then by fma over the values with (y_i, S^T), over j with (X_ij, k_j), over j with
//	(X_ji, k_j), over j with (Y_ji, q_j)
//	Z_ij = Y_ij*dot(q_i, k_j) + X_ij*dot(k_i, k_j) for j < i, else +0;  t_i = tree(k_i*u_i)
//	dc_i = tree over j of Z_ij - sum over rows j ascending of Z_ji + E_i*tree(dot(q_i, S)*do_i) + tree(y_i*h_i) - t_i,
//	from the left; h_i = dot(k_i, S)
//	       the last row then adds (sum over i ascending of t_i) + E_(L-1)*tree(A*S), as flat arrays
//	dg_i = sum over j = L-1 ... i of dc_j
//	dS = E_(L-1)*A, then by fma over rows with (q_i*E_i, do_i), then over rows with (k_i, y_i): A of the chunk before
//
// Delta rule: dv_i = round(beta_i*x_i + 0), dbeta_i = tree(x_i*(v_i - E_i*h_i)) + tree over j of B_ij*dot(k_i, k_j),
// db_i = round(dbeta_i*(beta_i*(1-beta_i))). State space: dx_i = round((dt_i*x_i + skip*do_i) + 0), ddt_i =
// tree(x_i*v_i). dq and dk of a key head are sums over its heads ascending, from +0. The delta rule propagates them
// through the norms: with d = dq*KeyDim^-0.5 (or dk), x the raw row and xh = x*rs: round(rs*(d - xh*tree(d*xh)) + 0); a
// state space rounds them as they are, + 0.
type chunkedGrad struct {
	chunked
	dout, dq, dk, dv matrix
	dg               kernels.Tensor
	db               matrix         // delta rule
	ddt              kernels.Tensor // state space
	dskip            []float32      // [T, Heads]: what each row adds
}

// chunkGradScratch is a goroutine's memory for the backward.
type chunkGradScratch struct {
	states []float32 // [chunks, group, KeyDim*ValueDim]: S at the start of each chunk
	a      []float32 // [group, KeyDim*ValueDim]
	dq, dk []float32 // [rows, KeyDim], summed over heads
	part   []float32 // [rows, KeyDim], of one head
	u      []float32 // [rows, KeyDim]

	do, x, y, qs []float32 // [rows, ValueDim]; x begins as dn
	flip         []float32 // [rows, ValueDim]: rows in descending order
	p, ym, xm    []float32 // [rows, rows]: P, Y, X
	mt           []float32 // [rows, rows]: -M transposed, rows and columns descending
	f, t, dc     []float32 // [rows]
	cols         []float32 // [rows]
}

// run writes the gradients of all spans.
func (op *chunkedGrad) run(l *kernels.Layout) {
	op.eachKeyHead(l, func(s *kernels.Span, head int, w *chunkScratch) {
		size := op.d.def.ChunkRows
		op.replay(s, head, w)
		w.grad.a = sized(w.grad.a, len(w.heads)*op.stateLen())
		clear(w.grad.a)
		for from := (s.Rows - 1) / size * size; from >= 0; from -= size {
			op.chunk(w, s.Row+from, head, min(size, s.Rows-from), from/size)
		}
	})
}

func (op *chunkedGrad) stateLen() int { return op.shape.KeyDim * op.shape.ValueDim }

// replay recomputes the forward of a sequence and keeps the state at the start of each chunk.
func (op *chunkedGrad) replay(s *kernels.Span, head int, w *chunkScratch) {
	size := op.d.def.ChunkRows
	op.open(s, head, w)
	w.grad.states = w.grad.states[:0]
	for from := 0; from < s.Rows; from += size {
		for _, h := range w.heads {
			w.grad.states = append(w.grad.states, h.s...)
		}
		if from+size >= s.Rows {
			break
		}
		op.keys(w, s.Row+from, head, 0, size)
		for i := range w.heads {
			op.rows(w, i, s.Row+from, head*op.group+i, 0, size)
			op.advance(w, i, size)
		}
	}
}

// chunk is the backward of the n rows of one chunk, for the heads of a key head.
func (op *chunkedGrad) chunk(w *chunkScratch, row, head, n, number int) {
	g, keyDim, stateLen := &w.grad, op.shape.KeyDim, op.stateLen()
	op.keys(w, row, head, 0, n)
	g.dq, g.dk = sized(g.dq, n*keyDim), sized(g.dk, n*keyDim)
	clear(g.dq)
	clear(g.dk)
	for i := range w.heads {
		h := head*op.group + i
		copy(w.heads[i].s, g.states[(number*op.group+i)*stateLen:])
		op.rows(w, i, row, h, 0, n)
		a := g.a[i*stateLen:][:stateLen]
		op.values(w, i, row, h, n, a)
		op.pairs(w, i, n)
		op.queriesAndKeys(w, i, n, a)
		op.decayGrad(w, i, row, h, n, a)
		op.storeValues(w, row, h, n)
		op.stateGrad(w, n, a)
	}
	for i := range n {
		op.storeKey(&op.dq, &op.q, w, row+i, head, g.dq[i*keyDim:][:keyDim], w.rsq[i], queryScale(keyDim))
		op.storeKey(&op.dk, &op.k, w, row+i, head, g.dk[i*keyDim:][:keyDim], w.rsk[i], 1)
	}
}
