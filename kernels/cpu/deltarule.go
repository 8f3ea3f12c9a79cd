package cpu

import (
	"math"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// DeltaRule is the gated delta rule as kernels.DeltaNet states it.
func (d *Device) DeltaRule(out kernels.Tensor, x kernels.DeltaRuleOperands, s *kernels.ChunkState, l *kernels.Layout,
	r kernels.Recurrence) {
	op := d.deltaRule(x, s, r)
	op.check("delta rule", l, out, x.G, x.B)
	op.run(out, l)
}

// DeltaRuleBackward is stated at chunkedGrad.
func (d *Device) DeltaRuleBackward(dx kernels.DeltaRuleOperands, dout kernels.Tensor, x kernels.DeltaRuleOperands,
	l *kernels.Layout, r kernels.Recurrence) {
	op := &chunkedGrad{
		chunked: *d.deltaRule(x, nil, r), dout: d.matrix(dout), dq: d.matrix(dx.Q), dk: d.matrix(dx.K),
		dv: d.matrix(dx.V), dg: dx.G, db: d.matrix(dx.B),
	}
	op.check("delta rule backward", l, dout, dx.V, x.G, x.B, dx.G, dx.B)
	op.run(l)
}

func (d *Device) deltaRule(x kernels.DeltaRuleOperands, s *kernels.ChunkState, r kernels.Recurrence) *chunked {
	return &chunked{
		d: d, shape: r, group: r.Heads / r.KeyHeads, q: d.matrix(x.Q), k: d.matrix(x.K), v: d.matrix(x.V), g: x.G,
		state: s, rule: &deltaRule{b: d.matrix(x.B)},
	}
}

// normEps is added to the squared length of a query or key.
const normEps = 1e-6

// normalise scales x to length 1 and returns the factor.
func (op *chunked) normalise(x []float32) float32 {
	rs := 1 / float32(math.Sqrt(float64(op.d.vec.TreeDot(x, x)+normEps)))
	op.d.vec.Scale(x, rs)
	return rs
}

// queryScale is KeyDim^-0.5.
func queryScale(dim int) float32 { return float32(1 / math.Sqrt(float64(dim))) }

// solveRows is the number of rows whose chains over earlier rows are taken together.
const solveRows = 16

// corrections computes h = k S, beta, -M and n of a piece.
func (op *chunked) corrections(w *chunkScratch, st *headState, row, head, from, n int) {
	keyDim, dim, cols, vec := op.shape.KeyDim, op.shape.ValueDim, from+n, op.d.vec
	w.h, w.m, w.beta = sized(w.h, n*dim), sized(w.m, n*cols), sized(w.beta, n)
	clear(w.h)
	op.product(w, w.h, n, dim, keyDim, matrixOf(w.k[from*keyDim:], keyDim), matrixOf(st.s, dim))
	var buf [1]float32
	for r := range n {
		w.beta[r] = sigmoid(vec.Exp2, op.rule.b.loadPart(row+r, head, head+1, buf[:])[0])
		z := st.n[(from+r)*dim:][:dim]
		op.residual(z, w, r)
		vec.Scale(z, w.beta[r])
		m := w.m[r*cols:][:from+r]
		vec.Mul(m, w.kk[r*cols:][:from+r], w.g[r*cols:][:from+r])
		vec.Scale(m, -w.beta[r])
	}
	op.d.solve(&w.mm, st.n, dim, w.m, cols, from, n)
}

// residual is v - E*h of row r of the piece.
func (op *chunked) residual(z []float32, w *chunkScratch, r int) {
	dim := len(z)
	op.d.vec.ScaleTo(z, w.h[r*dim:][:dim], -w.e[r])
	op.d.vec.Add(z, w.v[r*dim:][:dim], z)
}

// solve continues rows from, from+1, ... of x [from+n, dim], each over all earlier rows j ascending, by fma with
// m[i-from, j].
func (d *Device) solve(s *gemm.Scratch, x []float32, dim int, m []float32, cols, from, n int) {
	before := matrixOf(x, dim)
	for first := 0; first < n; first += solveRows {
		rows, at := min(solveRows, n-first), from+first
		d.fma.Tile(s, x[at*dim:], dim, rows, dim, at, matrixOf(m[first*cols:], cols), before)
		for r := 1; r < rows; r++ {
			d.fma.Tile(s, x[(at+r)*dim:], dim, 1, dim, r, gemm.View{X: m[(first+r)*cols+at:], RS: cols, CS: 1},
				matrixOf(x[at*dim:], dim))
		}
	}
}

// sigmoid is sigm(x) of the definition.
func sigmoid(exp2 func(float32) float32, x float32) float32 {
	if x >= 0 {
		return 1 / (1 + exp2(float32(-x*kernels.Log2E)))
	}
	e := exp2(float32(x * kernels.Log2E))
	return e / (1 + e)
}
