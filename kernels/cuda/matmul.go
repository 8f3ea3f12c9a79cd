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
	if len(terms) == 0 || len(terms) > mostTerms {
		panic(fmt.Sprintf("cuda: %d terms of a product", len(terms)))
	}
	var operands []kernels.Tensor
	for _, t := range terms {
		mustBF16(t.X, t.W)
		operands = append(operands, t.X, t.W)
	}
	turns := g != nil && g.Turns // the wgmma kernels have no way for these, which are small
	if count := groupCount(g); !turns && d.native(count, operands...) {
		d.productNative(layout, d.tilingFor(count, out.Rows, out.Cols), out, g, terms)
		return
	}
	var offsets kernels.Tensor
	rows, each, turn := out.Rows, 1, int64(0) // of a group; groups that take turns; from one to the next
	if turns {
		rows, each, turn = out.Rows/g.Count, g.Count, int64(out.Stride)
	}
	groups, packs, tiles := 1, 1, blocks(rows, matmulTile)
	if g != nil && !turns {
		offsets, groups, packs = g.Offsets, g.Count, g.Packs
		tiles += min(g.Count, out.Rows) // a group's last tile may be short
	}
	kind := "_vector"
	params := []any{out, int64(each * out.Stride), offsets, groups, packs, rows, out.Cols}
	for i := range mostTerms {
		var t kernels.Term
		if i < len(terms) {
			t = terms[i]
			if !vectors(t.X) || !vectors(t.W) {
				kind = "_any"
			}
		}
		group := t.W.Rows * t.W.Stride
		if turns && t.W.Groups == 1 {
			group = 0 // all share it
		}
		params = append(params, t.X, t.W, int64(each*t.X.Stride), int64(t.W.Stride), int64(group), int64(t.X.Cols), int64(t.X.Stride))
	}
	d.launch(layout+kind+suffix(out), [3]int{blocks(out.Cols, matmulTile), tiles, each}, matmulThreads, matmulShared, append(params, len(terms), turn)...)
}

// WeightGrad: dw[n,k] continues its chain over rows m of dy[m,n]*x[m,k], in steps that restart at each pack of each group.
func (d *Device) WeightGrad(dw, dy, x kernels.Tensor, g *kernels.Groups) {
	mustBF16(dy, x)
	if g.Turns {
		d.weightGradTurns(dw, dy, x, g)
		return
	}
	if uintptr(dw.Data)%16 == 0 && d.native(g.Count, dy, x) {
		d.weightGradNative(d.weightGradTiling(dw, x.Rows), dw, dy, x, g)
		return
	}
	d.launch(weightGradFor(dy, x), [3]int{blocks(dw.Cols, matmulTile), blocks(dw.Rows, matmulTile), g.Count}, matmulThreads, matmulShared,
		dw, dy, x, int64(dy.Stride), int64(x.Stride), g.Offsets, g.Packs, dw.Rows, dw.Cols, 1, int64(0), int64(0))
}

// weightGradTurns is WeightGrad where rows take turns: groups side by side, or one after the other where they share a weight.
func (d *Device) weightGradTurns(dw, dy, x kernels.Tensor, g *kernels.Groups) {
	side, turns := g.Count, 1
	if dw.Groups == 1 {
		side, turns = 1, g.Count
	}
	d.launch(weightGradFor(dy, x), [3]int{blocks(dw.Cols, matmulTile), blocks(dw.Rows, matmulTile), side}, matmulThreads, matmulShared,
		dw, dy, x, int64(g.Count*dy.Stride), int64(g.Count*x.Stride), g.Offsets, g.Packs, dw.Rows, dw.Cols, turns, int64(dy.Stride), int64(x.Stride))
}

func weightGradFor(dy, x kernels.Tensor) string {
	if vectors(dy) && vectors(x) {
		return "weight_grad_vector"
	}
	return "weight_grad_any"
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
