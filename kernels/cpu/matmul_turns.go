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

// weightGradTurns is WeightGrad where rows take turns.
func (d *Device) weightGradTurns(dw, dy, x kernels.Tensor, g *kernels.Groups) {
	packs := &kernels.Groups{Offsets: g.Offsets, Count: 1, Packs: g.Packs}
	for e := range g.Count {
		d.WeightGrad(turnOf(dw, e, g.Count), dy.Turn(e, g.Count), x.Turn(e, g.Count), packs)
	}
}
