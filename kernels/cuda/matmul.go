//go:build cuda

package cuda

import (
	"fmt"

	"lockstep/kernels"
)

// Sizes of matmul.cu.
const (
	matmulTile    = 128
	matmulThreads = 256
	matmulShared  = 3 * 2 * matmulTile * (32 + 8) * 2 // bytes
	mostTerms     = 4                                 // q, k, v and what adapters add: the input gradient of a stacked projection
)

// MatMul: out[m,n] = round(dot over the terms, over k of x[m,k]*w[n,k]).
func (d *Device) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.product("nt", out, g, terms)
}

// MatMulT: out[m,k] = round(dot over the terms, over n of x[m,n]*w[n,k]).
func (d *Device) MatMulT(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.product("nn", out, g, terms)
}

func (d *Device) product(layout string, out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) {
	if g != nil && g.Turns {
		for e := range g.Count {
			own := make([]kernels.Term, len(terms))
			for i, t := range terms {
				own[i] = kernels.Term{X: t.X.Turn(e, g.Count), W: turnOf(t.W, e)}
			}
			d.product(layout, out.Turn(e, g.Count), nil, own)
		}
		return
	}
	if len(terms) == 0 || len(terms) > mostTerms {
		panic(fmt.Sprintf("cuda: %d terms of a product", len(terms)))
	}
	var operands []kernels.Tensor
	for _, t := range terms {
		mustBF16(t.X, t.W)
		operands = append(operands, t.X, t.W)
	}
	if count := groupCount(g); d.native(count, operands...) {
		d.productNative(layout, d.tilingFor(count, out.Rows, out.Cols), out, g, terms)
		return
	}
	var offsets kernels.Tensor
	groups, packs, tiles := 1, 1, blocks(out.Rows, matmulTile)
	if g != nil {
		offsets, groups, packs = g.Offsets, g.Count, g.Packs
		tiles += min(g.Count, out.Rows) // a group's last tile may be short
	}
	kind := "_vector"
	params := []any{out, int64(out.Stride), offsets, groups, packs, out.Rows, out.Cols}
	for i := range mostTerms {
		var t kernels.Term
		if i < len(terms) {
			t = terms[i]
			if !vectors(t.X) || !vectors(t.W) {
				kind = "_any"
			}
		}
		params = append(params, t.X, t.W, int64(t.X.Stride), int64(t.W.Stride), int64(t.W.Rows*t.W.Stride), int64(t.X.Cols))
	}
	d.launch(layout+kind+suffix(out), [3]int{blocks(out.Cols, matmulTile), tiles, 1}, matmulThreads, matmulShared, append(params, len(terms))...)
}

// WeightGrad: dw[n,k] continues its chain over rows m of dy[m,n]*x[m,k], in steps that restart at each pack of each group.
func (d *Device) WeightGrad(dw, dy, x kernels.Tensor, g *kernels.Groups) {
	mustBF16(dy, x)
	if g.Turns {
		packs := &kernels.Groups{Offsets: g.Offsets, Count: 1, Packs: g.Packs}
		for e := range g.Count {
			d.WeightGrad(turnOf(dw, e), dy.Turn(e, g.Count), x.Turn(e, g.Count), packs)
		}
		return
	}
	if uintptr(dw.Data)%16 == 0 && d.native(g.Count, dy, x) {
		d.weightGradNative(d.weightGradTiling(dw, x.Rows), dw, dy, x, g)
		return
	}
	name := "weight_grad_any"
	if vectors(dy) && vectors(x) {
		name = "weight_grad_vector"
	}
	d.launch(name, [3]int{blocks(dw.Cols, matmulTile), blocks(dw.Rows, matmulTile), g.Count}, matmulThreads, matmulShared,
		dw, dy, x, int64(dy.Stride), int64(x.Stride), g.Offsets, g.Packs, dw.Rows, dw.Cols)
}

// turnOf is the weight of a group whose rows take turns with others, or the one that all share.
func turnOf(w kernels.Tensor, e int) kernels.Tensor {
	if w.Groups == 1 {
		return w
	}
	return w.Group(e)
}

func groupCount(g *kernels.Groups) int {
	if g == nil {
		return 1
	}
	return g.Count
}

// vectors tells whether every row of t starts at a multiple of 16 bytes.
func vectors(t kernels.Tensor) bool { return uintptr(t.Data)%16 == 0 && t.Stride%8 == 0 }

func mustBF16(ts ...kernels.Tensor) {
	for _, t := range ts {
		if t.DType != kernels.BF16 {
			panic(fmt.Sprintf("cuda: tensor cores multiply bf16, not %s", t))
		}
	}
}
