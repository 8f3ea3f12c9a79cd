package cpu

// The steps of the backward of a chunk of n rows, for one head, in the order in which chunkedGrad.chunk takes them.

// values computes P, F, dn and x of a head, and y and dot(q, S).
func (op *chunkedGrad) values(w *chunkScratch, i, row, head, n int, a []float32) {
	g, vec, keyDim, dim, st := &w.grad, op.d.vec, op.shape.KeyDim, op.shape.ValueDim, &w.heads[i]
	g.do, g.x, g.y, g.qs = sized(g.do, n*dim), sized(g.x, n*dim), sized(g.y, n*dim), sized(g.qs, n*dim)
	g.p, g.f = sized(g.p, n*n), sized(g.f, n)
	vec.Exp2Sub(g.f, st.c[:n], -1, st.c[n-1])
	clear(g.x)
	op.product(w, g.x, n, dim, keyDim, matrixOf(w.k, keyDim), matrixOf(a, dim))
	clear(g.qs)
	op.product(w, g.qs, n, dim, keyDim, matrixOf(w.q, keyDim), matrixOf(st.s, dim))
	for r := range n {
		op.dout.copyHead(g.do[r*dim:][:dim], row+r, head)
		vec.Scale(g.x[r*dim:][:dim], g.f[r])
		p := g.p[r*n:][:n]
		vec.Mul(p[:r+1], w.qq[r*n:][:r+1], w.g[r*n:][:r+1])
		clear(p[r+1:])
	}
	op.product(w, g.x, n, dim, n, transposed(matrixOf(g.p, n)), matrixOf(g.do, dim))
	if op.rule != nil {
		op.solveTransposed(w, n)
		for r := range n {
			vec.ScaleTo(g.y[r*dim:][:dim], g.x[r*dim:][:dim], -float32(w.beta[r]*w.e[r]))
		}
	}
}

// solveTransposed replaces dn by x of the delta rule.
func (op *chunkedGrad) solveTransposed(w *chunkScratch, n int) {
	g, dim := &w.grad, op.shape.ValueDim
	g.flip, g.mt = sized(g.flip, n*dim), sized(g.mt, n*n)
	for r := range n {
		copy(g.flip[(n-1-r)*dim:][:dim], g.x[r*dim:])
		for j := range r {
			g.mt[(n-1-j)*n+n-1-r] = w.m[r*n+j]
		}
	}
	op.d.solve(&w.mm, g.flip, dim, g.mt, n, 0, n)
	for r := range n {
		copy(g.x[r*dim:][:dim], g.flip[(n-1-r)*dim:])
	}
}

// pairs computes Y, and for the delta rule B in xm, which betaGrad replaces by X.
func (op *chunkedGrad) pairs(w *chunkScratch, i, n int) {
	g, vec, dim, st := &w.grad, op.d.vec, op.shape.ValueDim, &w.heads[i]
	added := transposed(matrixOf(st.n, dim))
	g.ym, g.xm = sized(g.ym, n*n), sized(g.xm, n*n)
	clear(g.ym)
	clear(g.xm)
	op.product(w, g.ym, n, n, dim, matrixOf(g.do, dim), added)
	if op.rule != nil {
		op.product(w, g.xm, n, n, dim, matrixOf(g.x, dim), added)
	}
	for r := range n {
		y, x, decay := g.ym[r*n:][:n], g.xm[r*n:][:n], w.g[r*n:][:n]
		vec.Mul(y[:r+1], y[:r+1], decay[:r+1])
		clear(y[r+1:])
		if op.rule != nil {
			vec.Mul(x[:r], x[:r], decay[:r])
			vec.Scale(x[:r], -1)
			clear(x[r:])
		}
	}
}

// queriesAndKeys adds a head's dq and dk to those of its key head. For the delta rule it also computes X and dbeta.
func (op *chunkedGrad) queriesAndKeys(w *chunkScratch, i, n int, a []float32) {
	g, vec, keyDim, dim, st := &w.grad, op.d.vec, op.shape.KeyDim, op.shape.ValueDim, &w.heads[i]
	g.part, g.u = sized(g.part, n*keyDim), sized(g.u, n*keyDim)
	states := transposed(matrixOf(st.s, dim))
	clear(g.part)
	op.product(w, g.part, n, keyDim, dim, matrixOf(g.do, dim), states)
	for r := range n {
		vec.Scale(g.part[r*keyDim:][:keyDim], w.e[r])
	}
	op.product(w, g.part, n, keyDim, n, matrixOf(g.ym, n), matrixOf(w.k, keyDim))
	vec.Add(g.dq, g.dq, g.part)

	clear(g.u)
	op.product(w, g.u, n, keyDim, dim, matrixOf(st.n, dim), transposed(matrixOf(a, dim)))
	for r := range n {
		vec.Scale(g.u[r*keyDim:][:keyDim], g.f[r])
	}
	copy(g.part, g.u)
	if op.rule != nil {
		op.betaGrad(w, n)
		op.product(w, g.part, n, keyDim, dim, matrixOf(g.y, dim), states)
		op.product(w, g.part, n, keyDim, n, matrixOf(g.xm, n), matrixOf(w.k, keyDim))
		op.product(w, g.part, n, keyDim, n, transposed(matrixOf(g.xm, n)), matrixOf(w.k, keyDim))
	}
	op.product(w, g.part, n, keyDim, n, transposed(matrixOf(g.ym, n)), matrixOf(w.q, keyDim))
	vec.Add(g.dk, g.dk, g.part)
}

// betaGrad writes dbeta to t and replaces B by X.
func (op *chunkedGrad) betaGrad(w *chunkScratch, n int) {
	g, vec, dim := &w.grad, op.d.vec, op.shape.ValueDim
	g.t, g.flip = sized(g.t, n), sized(g.flip, n*dim)
	for r := range n {
		z, b := g.flip[:dim], g.xm[r*n:][:n]
		op.residual(z, w, r)
		g.t[r] = vec.TreeDot(g.x[r*dim:][:dim], z) + vec.TreeDot(b, w.kk[r*n:][:n])
		vec.Scale(b, w.beta[r])
	}
}

// decayGrad writes dg of a head; with the delta rule also db.
func (op *chunkedGrad) decayGrad(w *chunkScratch, i, row, head, n int, a []float32) {
	g, vec, keyDim, dim, st := &w.grad, op.d.vec, op.shape.KeyDim, op.shape.ValueDim, &w.heads[i]
	g.dc, g.cols = sized(g.dc, n), sized(g.cols, n)
	clear(g.cols)
	for r := range n {
		if op.rule != nil {
			beta := w.beta[r]
			op.db.storePart(row+r, head, []float32{g.t[r] * float32(beta*(1-beta))})
		}
		z := g.p[r*n:][:n] // P is not needed any more
		for j := range r {
			z[j] = float32(g.ym[r*n+j] * w.qq[r*n+j])
			if op.rule != nil {
				z[j] += float32(g.xm[r*n+j] * w.kk[r*n+j])
			}
		}
		clear(z[r:])
		g.dc[r] = vec.Tree(z)
		vec.Add(g.cols, g.cols, z)
	}
	sum, dg := float32(0), op.dg.F32s()
	for r := range n {
		dc := g.dc[r] - g.cols[r]
		dc += float32(w.e[r] * vec.TreeDot(g.qs[r*dim:][:dim], g.do[r*dim:][:dim]))
		if op.rule != nil {
			dc += vec.TreeDot(g.y[r*dim:][:dim], w.h[r*dim:][:dim])
		}
		t := vec.TreeDot(w.k[r*keyDim:][:keyDim], g.u[r*keyDim:][:keyDim])
		g.dc[r] = dc - t
		sum += t
	}
	g.dc[n-1] += sum + float32(w.e[n-1]*vec.TreeDot(a, st.s))
	later := float32(0)
	for r := n - 1; r >= 0; r-- {
		later += g.dc[r]
		dg[(row+r)*op.dg.Stride+head] = later
	}
}

// storeValues writes the gradient of the values; for a state space also ddt and the rows of dskip.
func (op *chunkedGrad) storeValues(w *chunkScratch, row, head, n int) {
	g, vec, dim := &w.grad, op.d.vec, op.shape.ValueDim
	for r := range n {
		x, v, do := g.x[r*dim:][:dim], w.v[r*dim:][:dim], g.do[r*dim:][:dim]
		if op.rule != nil {
			vec.Scale(x, w.beta[r])
		} else {
			dt := op.space.dt
			op.ddt.F32s()[(row+r)*op.ddt.Stride+head] = vec.TreeDot(x, v)
			op.dskip[(row+r)*op.shape.Heads+head] = vec.TreeDot(do, v)
			vec.ScaleAdd(x, dt.F32s()[(row+r)*dt.Stride+head], do, op.space.skip[head])
		}
		op.dv.storeHead(row+r, head, x)
	}
}

// stateGrad replaces a, the gradient of the state after the chunk, by that of the state before it.
func (op *chunkedGrad) stateGrad(w *chunkScratch, n int, a []float32) {
	g, vec, keyDim, dim := &w.grad, op.d.vec, op.shape.KeyDim, op.shape.ValueDim
	vec.Scale(a, w.e[n-1])
	for r := range n {
		vec.ScaleTo(g.part[r*keyDim:][:keyDim], w.q[r*keyDim:][:keyDim], w.e[r])
	}
	op.product(w, a, keyDim, dim, n, transposed(matrixOf(g.part, keyDim)), matrixOf(g.do, dim))
	if op.rule != nil {
		op.product(w, a, keyDim, dim, n, transposed(matrixOf(w.k, keyDim)), matrixOf(g.y, dim))
	}
}

// storeKey writes the gradient d of a query or key, through its norm where it has one. d is overwritten.
func (op *chunkedGrad) storeKey(to, from *matrix, w *chunkScratch, row, head int, d []float32, rs, scale float32) {
	if op.rule != nil {
		vec, raw := op.d.vec, w.grad.part[:len(d)]
		from.copyHead(raw, row, head)
		vec.Scale(d, scale)
		vec.NormGrad(d, d, raw, rs, vec.TreeScaled(d, raw, rs))
	}
	to.storeHead(row, head, d)
}
