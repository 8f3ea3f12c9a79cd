package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// MatMul: out[m,n] = round(dot over the terms, over k of x[m,k]*w[n,k]).
func (d *Device) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.product("MatMul", out, g, terms, false)
}

// MatMulLoRA: u = round(scale * round(x a^T)), then MatMul of terms, which may read u.
func (d *Device) MatMulLoRA(out, u, x, a kernels.Tensor, scale float32, g *kernels.Groups, terms ...kernels.Term) {
	d.MatMul(u, g, kernels.Term{X: x, W: a})
	d.Scale(u, u, scale)
	d.MatMul(out, g, terms...)
}

// MatMulT: out[m,k] = round(dot over the terms, over n of x[m,n]*w[n,k]).
func (d *Device) MatMulT(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.product("MatMulT", out, g, terms, true)
}

// WeightGrad: dw[n,k] += the chain over rows m of dy[m,n]*x[m,k] of each segment, of the first rows first; with
// Groups.Chain it continues its own.
func (d *Device) WeightGrad(dw, dy, x kernels.Tensor, g *kernels.Groups, then ...kernels.GradRows) {
	if g != nil && g.Fresh {
		d.Zero(dw)
	}
	d.weightGrad(dw, dy, x, g)
	for _, p := range then {
		d.weightGrad(dw, p.DY, p.X, p.Groups)
	}
}

func (d *Device) weightGrad(dw, dy, x kernels.Tensor, g *kernels.Groups) {
	if g != nil && g.Interleaved {
		d.weightGradInterleaved(dw, dy, x, g)
		return
	}
	if g == nil || dw.DType != kernels.F32 || !dw.Contiguous() || dw.Groups != g.Count || dw.Rows != dy.Cols ||
		dw.Cols != x.Cols || dy.Rows != x.Rows {
		panic(fmt.Sprintf("cpu: WeightGrad: dw %s of dy %s and x %s, groups %+v", dw, dy, x, g))
	}
	offsets := rowOffsets("WeightGrad", g, dy.Rows)
	products := make([]gemm.Product, 0, g.Count)
	for e := range g.Count {
		p := gradient(dw.Group(e), g)
		for i := e * g.Segments; i < (e+1)*g.Segments; i++ {
			p.Pieces = appendRows(p.Pieces, dy, x, int(offsets[i]), int(offsets[i+1]))
			endChain(p.Pieces)
		}
		products = append(products, p)
	}
	d.mm.Run(d.pool.threads, d.pool.each, products)
}

// gradient is the product of a matrix of dw, without its pieces.
func gradient(dw kernels.Tensor, g *kernels.Groups) gemm.Product {
	if g.Chain && g.Segments != 1 {
		panic(fmt.Sprintf("cpu: WeightGrad: a chain of %d segments", g.Segments))
	}
	return gemm.Product{C: gemm.Of(dw), M: dw.Rows, N: dw.Cols, Continue: g.Chain, Add: !g.Chain}
}

// appendRows adds rows [from, to) of dy and x, if there are any, to the pieces of a weight gradient.
func appendRows(pieces []gemm.Piece, dy, x kernels.Tensor, from, to int) []gemm.Piece {
	if from == to {
		return pieces
	}
	return append(pieces, gemm.Piece{A: gemm.Of(dy).T().From(0, from), B: gemm.Of(x).From(from, 0), K: to - from})
}

// endChain ends a segment's chain with the last piece, if there is one.
func endChain(pieces []gemm.Piece) {
	if n := len(pieces); n > 0 {
		pieces[n-1].Ends = true
	}
}

// product is MatMul, or MatMulT with the weights transposed: one product, or one for each group of rows.
func (d *Device) product(op string, out kernels.Tensor, g *kernels.Groups, terms []kernels.Term, transposed bool) {
	if g != nil && g.Interleaved {
		d.productInterleaved(op, out, g.Count, terms, transposed)
		return
	}
	mustTerms(op, out, g, terms, transposed)
	bounds := []int32{0, int32(out.Rows)}
	if g != nil {
		offsets := rowOffsets(op, g, out.Rows)
		bounds = bounds[:0]
		for e := range g.Count + 1 {
			bounds = append(bounds, offsets[e*g.Segments])
		}
	}
	products := make([]gemm.Product, 0, len(bounds)-1)
	for e := range len(bounds) - 1 {
		from, to := int(bounds[e]), int(bounds[e+1])
		if from == to {
			continue
		}
		own := make([]kernels.Term, len(terms))
		for i, t := range terms {
			x := t.X
			if t.XQ == nil {
				x = x.RowRange(from, to)
			}
			own[i] = ofGroup(t, x, e)
		}
		products = append(products, runs(out.RowRange(from, to), own, transposed, from)...)
	}
	d.mm.Run(d.pool.threads, d.pool.each, products)
}

// runs is a product for each run of out's columns that the same terms cover. Inputs in codes have out's rows from row
// `first` on.
func runs(out kernels.Tensor, terms []kernels.Term, transposed bool, first int) []gemm.Product {
	var products []gemm.Product
	cols := kernels.Runs(out.Cols, terms)
	for i, col := range cols[:len(cols)-1] {
		p := gemm.Product{C: gemm.Of(out).From(0, col), M: out.Rows, N: cols[i+1] - col}
		for _, t := range terms {
			if !t.Covers(col) {
				continue
			}
			w := operandOf(t)
			if !transposed {
				w = w.T()
			}
			p.Pieces = append(p.Pieces, gemm.Piece{A: inputOf(t, first), B: w.From(0, col-t.From), K: t.X.Cols})
		}
		products = append(products, p)
	}
	return products
}

func mustTerms(op string, out kernels.Tensor, g *kernels.Groups, terms []kernels.Term, transposed bool) {
	count := 1
	if g != nil {
		count = g.Count
	}
	for i, t := range terms {
		w := t.Weight()
		n, k := w.Rows, w.Cols
		if transposed {
			n, k = k, n
		}
		from, to := t.Columns(out.Cols)
		if t.X.Groups != 1 || t.X.Rows != out.Rows || t.X.Cols != k || to-from != n || w.Groups != count ||
			out.Groups != 1 || transposed && t.To != 0 || t.XQ != nil && (transposed || i > 0 || !t.OfCodes()) {
			panic(fmt.Sprintf("cpu: %s: columns %d:%d of out %s of x %s and w %s in %d groups", op, from, to, out, t.X,
				w, count))
		}
	}
}

// rowOffsets is the host memory of a group's offsets, checked to ascend and to lie among the rows.
func rowOffsets(op string, g *kernels.Groups, rows int) []int32 {
	offsets := indices(op, "offsets", g.Offsets, g.Count*g.Segments+1)
	for i := range offsets {
		if i > 0 && offsets[i] < offsets[i-1] || offsets[i] < 0 {
			panic(fmt.Sprintf("cpu: %s: offsets %v do not ascend from 0", op, offsets))
		}
	}
	if last := offsets[len(offsets)-1]; int(last) > rows {
		panic(fmt.Sprintf("cpu: %s: offsets end at %d of %d rows", op, last, rows))
	}
	return offsets
}
