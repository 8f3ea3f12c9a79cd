package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// productInterleaved is product of interleaved groups: a product for each group, of every count-th row.
func (d *Device) productInterleaved(op string, out kernels.Tensor, count int, terms []kernels.Term, transposed bool) {
	var products []gemm.Product
	for e := range count {
		own := out.InterleavedGroup(e, count)
		of := make([]kernels.Term, len(terms))
		for i, t := range terms {
			of[i] = kernels.Term{X: t.X.InterleavedGroup(e, count), W: weightOf(t.W, e, count), From: t.From, To: t.To}
		}
		mustTerms(op, own, nil, of, transposed)
		products = append(products, runs(own, of, transposed)...)
	}
	d.mm.Run(d.pool.threads, d.pool.each, products)
}

// weightOf is the weight of group e, or the one that all groups share.
func weightOf(w kernels.Tensor, e, count int) kernels.Tensor {
	if w.Groups == 1 {
		return w
	}
	if w.Groups != count {
		panic(fmt.Sprintf("cpu: weight %s for %d interleaved groups", w, count))
	}
	return w.Group(e)
}

// weightGradInterleaved is WeightGrad of interleaved groups. Each group has a chain over its packs. Groups that share
// dw have one chain, which takes the rows of every group in a pack before it goes on to the next pack: the bits do not
// depend on how many calls the packs of a step are split over.
func (d *Device) weightGradInterleaved(dw, dy, x kernels.Tensor, g *kernels.Groups) {
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
				dye, xe := dy.InterleavedGroup(e, g.Count), x.InterleavedGroup(e, g.Count)
				p.Pieces = appendRows(p.Pieces, dye, xe, int(from), int(offsets[i+1]))
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
