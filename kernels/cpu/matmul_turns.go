package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// productTurns is product where rows take turns: a product for each group, of every count-th row.
func (d *Device) productTurns(op string, out kernels.Tensor, count int, terms []kernels.Term, transposed bool) {
	var products []gemm.Product
	for e := range count {
		own := out.Turn(e, count)
		turn := make([]kernels.Term, len(terms))
		for i, t := range terms {
			turn[i] = kernels.Term{X: t.X.Turn(e, count), W: turnOf(t.W, e, count), From: t.From, To: t.To}
		}
		mustTerms(op, own, nil, turn, transposed)
		products = append(products, runs(own, turn, transposed)...)
	}
	d.mm.Run(d.pool.threads, d.pool.each, products)
}

// turnOf is the weight of a group, or the one that all share.
func turnOf(w kernels.Tensor, e, count int) kernels.Tensor {
	if w.Groups == 1 {
		return w
	}
	if w.Groups != count {
		panic(fmt.Sprintf("cpu: weight %s for rows of %d groups that take turns", w, count))
	}
	return w.Group(e)
}

// weightGradTurns is WeightGrad of interleaved groups: a chain for each group over its packs, or one chain for all
// groups where they share dw, which takes a pack's rows of every group before it goes on to the next pack. So the packs
// of a step may come in any number of calls.
func (d *Device) weightGradTurns(dw, dy, x kernels.Tensor, g *kernels.Groups) {
	chains, shared := g.Count, 1
	if dw.Groups == 1 {
		chains, shared = 1, g.Count
	}
	rows := dy.Rows / g.Count
	fits := dw.Groups == chains && dw.Rows == dy.Cols && dw.Cols == x.Cols && dy.Rows == x.Rows &&
		rows*g.Count == dy.Rows
	if dw.DType != kernels.F32 || !dw.Contiguous() || !fits {
		panic(fmt.Sprintf("cpu: WeightGrad: dw %s of dy %s and x %s, groups %+v", dw, dy, x, g))
	}
	offsets := rowOffsets("WeightGrad", &kernels.Groups{Offsets: g.Offsets, Count: 1, Packs: g.Packs}, rows)
	products := make([]gemm.Product, chains)
	for c := range products {
		p := gemm.Product{C: gemm.Of(dw.Group(c)), M: dw.Rows, N: dw.Cols, Continue: true}
		for i, from := range offsets[:g.Packs] {
			for e := c; e < c+shared; e++ {
				p.Pieces = appendRows(p.Pieces, dy.Turn(e, g.Count), x.Turn(e, g.Count), int(from), int(offsets[i+1]))
			}
		}
		products[c] = p
	}
	d.mm.Run(d.pool.threads, d.pool.each, products)
}

// appendRows adds rows [from, to) of dy and x, if there are any, to the pieces of a weight gradient.
func appendRows(pieces []gemm.Piece, dy, x kernels.Tensor, from, to int) []gemm.Piece {
	if from == to {
		return pieces
	}
	return append(pieces, gemm.Piece{A: gemm.Of(dy).T().From(0, from), B: gemm.Of(x).From(from, 0), K: to - from})
}
