package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// productTurns is product where rows take turns: a product for each group, of every count-th row.
func (d *Device) productTurns(op string, out kernels.Tensor, count int, terms []kernels.Term, transposed bool) {
	products := make([]gemm.Product, count)
	for e := range products {
		own := out.Turn(e, count)
		p := gemm.Product{C: gemm.Of(own), M: own.Rows, N: own.Cols}
		for _, t := range terms {
			t = kernels.Term{X: t.X.Turn(e, count), W: turnOf(t.W, e, count)}
			mustTerms(op, own, nil, []kernels.Term{t}, transposed)
			w := gemm.Of(t.W)
			if !transposed {
				w = w.T()
			}
			p.Pieces = append(p.Pieces, gemm.Piece{A: gemm.Of(t.X), B: w, K: t.X.Cols})
		}
		products[e] = p
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

// weightGradTurns is WeightGrad where rows take turns.
func (d *Device) weightGradTurns(dw, dy, x kernels.Tensor, g *kernels.Groups) {
	packs := &kernels.Groups{Offsets: g.Offsets, Count: 1, Packs: g.Packs}
	for e := range g.Count {
		d.WeightGrad(turnOf(dw, e, g.Count), dy.Turn(e, g.Count), x.Turn(e, g.Count), packs)
	}
}
