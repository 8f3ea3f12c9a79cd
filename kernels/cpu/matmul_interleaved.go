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
			if t.Q != nil || t.XQ != nil {
				panic("cpu: an operand in codes of interleaved groups")
			}
			of[i] = kernels.Term{X: t.X.InterleavedGroup(e, count), W: weightOf(t.W, e, count), From: t.From, To: t.To}
		}
		mustTerms(op, own, nil, of, transposed)
		products = append(products, runs(own, of, transposed, 0)...)
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

// weightGradInterleaved is WeightGrad of interleaved groups. Each group has a chain over the rows of a segment. Groups
// that share dw have one, which takes the rows of every group in the segment.
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
	offsets := rowOffsets("WeightGrad", &kernels.Groups{Offsets: g.Offsets, Count: 1, Segments: g.Segments}, rows)
	products := make([]gemm.Product, chains)
	for c := range products {
		p := gradient(dw.Group(c), g)
		for i, from := range offsets[:g.Segments] {
			for e := c; e < c+shared; e++ {
				dye, xe := dy.InterleavedGroup(e, g.Count), x.InterleavedGroup(e, g.Count)
				p.Pieces = appendRows(p.Pieces, dye, xe, int(from), int(offsets[i+1]))
			}
			endChain(p.Pieces)
		}
		products[c] = p
	}
	d.mm.Run(d.pool.threads, d.pool.each, products)
}
