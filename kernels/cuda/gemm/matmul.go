//go:build cuda

package gemm

import (
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// matmulShared is the shared memory of a block of matmul.cu, in bytes: stages of both operands.
const matmulShared = matmulStages * 2 * matmulPart * 2

// MatMul: out[m,n] = round(dot over the terms, over k of x[m,k]*w[n,k]).
func (d *Ops) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.product("nt", out, g, terms)
}

// MatMulT: out[m,k] = round(dot over the terms, over n of x[m,n]*w[n,k]).
func (d *Ops) MatMulT(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.product("nn", out, g, terms)
}

// MatMulLoRA is MatMul and Scale of u, then MatMul. Where both are by wgmma the second begins together with the first,
// on the multiprocessors that u leaves, and waits for it before the terms behind its own weight. Of few rows u leaves
// most: its chain may take as long as the other's.
func (d *Ops) MatMulLoRA(out, u, x, a kernels.Tensor, scale float32, g *kernels.Groups, terms ...kernels.Term) {
	first, groups := []kernels.Term{{X: x, W: a}}, groupCount(g)
	if !d.overlaps(out, g, x, a, terms) {
		d.productDense("nt", u, scale, g, first)
		d.MatMul(out, g, terms...)
		return
	}
	s := d.tilingFor(groups, u.Rows, u.Cols)
	if s.rows == tilingDeep.rows && d.Path == "" {
		s = tilingDeep
	}
	d.productNative("nt", s, window{0, u.Cols, first}, u, scale, g)
	d.busy = s.grid(d.Processors, groups, u.Rows, u.Cols)[0]
	d.MatMul(out, g, terms...)
}

// overlaps tells whether both products of MatMulLoRA are of kernels that can run together.
func (d *Ops) overlaps(out kernels.Tensor, g *kernels.Groups, x, a kernels.Tensor, terms []kernels.Term) bool {
	if terms[0].XQ != nil || !d.native(groupCount(g), x, a) {
		return false
	}
	if slices.ContainsFunc(terms, inCodes) {
		_, ok := d.nativeCodes(out, g, terms)
		return ok
	}
	return d.nativeDense(g, terms)
}

// begin has the launch of a product begin early, where what it adds is still computed.
func (d *Ops) begin() {
	if d.busy > 0 {
		d.Early()
		d.busy = 0
	}
}

func (d *Ops) product(layout string, out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) {
	if terms[0].XQ != nil && layout == "nt" {
		d.productFP8(out, g, terms)
		return
	}
	if slices.ContainsFunc(terms, inCodes) {
		d.productQuantized(layout, out, g, terms)
		return
	}
	d.productDense(layout, out, 1, g, terms)
}

// productDense is round(scale * round(product)) without weights in codes.
func (d *Ops) productDense(layout string, out kernels.Tensor, scale float32, g *kernels.Groups, terms []kernels.Term) {
	for _, t := range terms {
		driver.MustBF16(t.X, t.W)
		if layout == "nn" && t.To != 0 {
			panic(fmt.Sprintf("cuda: MatMulT for columns %d:%d", t.From, t.To))
		}
	}
	native, tile := d.nativeDense(g, terms), matmulTile
	if native {
		tile = d.tilingFor(groupCount(g), out.Rows, out.Cols).columns
	}
	for _, w := range windows(out.Cols, tile, terms) {
		if native {
			d.productNative(layout, d.tilingFor(groupCount(g), out.Rows, w.to-w.from), w, out, scale, g)
		} else {
			d.productPortable(layout, w, out, scale, g)
		}
	}
}

// nativeDense tells whether a product without weights in codes is by wgmma.
func (d *Ops) nativeDense(g *kernels.Groups, terms []kernels.Term) bool {
	return !slices.ContainsFunc(terms, func(t kernels.Term) bool { return !d.native(groupCount(g), t.X, t.W) })
}

// window is columns [from, to) of out, which one launch computes, and their terms.
type window struct {
	from, to int
	terms    []kernels.Term
}

// windows are all columns at once where terms begin and end at multiples of a tile, else runs of columns that the same
// terms cover.
func windows(n, tile int, terms []kernels.Term) (all []window) {
	runs := kernels.Runs(n, terms)
	whole := len(terms) <= productMostTerms
	for _, at := range runs[:len(runs)-1] {
		whole = whole && at%tile == 0
	}
	if whole {
		return []window{{0, n, terms}}
	}
	for i, at := range runs[:len(runs)-1] {
		w := window{from: at, to: runs[i+1]}
		for _, t := range terms {
			if t.Covers(at) {
				w.terms = append(w.terms, t)
			}
		}
		if len(w.terms) > productMostTerms {
			panic(fmt.Sprintf("cuda: %d terms of a product", len(w.terms)))
		}
		all = append(all, w)
	}
	return all
}

// productPortable is MatMul ("nt") or MatMulT ("nn") by mma.sync.
func (d *Ops) productPortable(layout string, w window, out kernels.Tensor, scale float32, g *kernels.Groups) {
	interleaved := g != nil && g.Interleaved
	var offsets kernels.Tensor
	rows, each, headStride := out.Rows, 1, 0 // rows of a group; interleaved groups; elements from one to the next
	if interleaved {
		rows, each, headStride = out.Rows/g.Count, g.Count, out.Stride
	}
	groups, segments, tiles := 1, 1, driver.Blocks(rows, matmulTile)
	if g != nil && !interleaved {
		offsets, groups, segments = g.Offsets, g.Count, g.Segments
		tiles += min(g.Count, out.Rows) // a group's last tile may be short
	}
	kind := "_vector"
	var terms [productMostTerms]matmulTerm
	for i := range terms {
		var t kernels.Term
		if i < len(w.terms) {
			t = w.terms[i]
			if !driver.Aligned16(t.X) || !driver.Aligned16(t.W) {
				kind = "_any"
			}
		}
		group := t.W.Rows * t.W.Stride
		if interleaved && t.W.Groups == 1 {
			group = 0 // all share it
		}
		from, to := t.Columns(out.Cols)
		terms[i] = matmulTerm{x: driver.Address(t.X), w: driver.Address(t.W), ldx: int64(each * t.X.Stride),
			ldw: int64(t.W.Stride), group: int64(group), k: int64(t.X.Cols), headStride: int64(t.X.Stride),
			from: driver.Int32(from), to: driver.Int32(to)}
	}
	launchProduct(d.Context, layout+kind+driver.Suffix(out), [3]int{driver.Blocks(w.to-w.from, matmulTile), tiles,
		each}, matmulThreads, matmulShared, out, each*out.Stride, offsets, groups, segments, rows, w.from, w.to,
		&terms[0], &terms[1], &terms[2], &terms[3], &terms[4], len(w.terms), headStride, scale)
}

// WeightGrad: dw[n,k] += the chain over rows m of dy[m,n]*x[m,k] of each segment, of the first rows first; with
// Groups.Chain it continues its own.
func (d *Ops) WeightGrad(dw, dy, x kernels.Tensor, g *kernels.Groups, then ...kernels.GradRows) {
	places, native := append([]kernels.GradRows{{DY: dy, X: x, Groups: g}}, then...), uintptr(dw.Data)%16 == 0
	for _, p := range places {
		driver.MustBF16(p.DY, p.X)
		if p.Groups.Chain && (p.Groups.Segments != 1 || len(places) > 1) {
			panic(fmt.Sprintf("cuda: WeightGrad: a chain of %d segments in %d places", p.Groups.Segments, len(places)))
		}
		native = native && d.native(p.Groups.Count, p.DY, p.X)
	}
	if native {
		fresh := g.Fresh
		for some := range slices.Chunk(places, weightgradWgmmaMostPlaces) {
			d.weightGradNative(dw, some, fresh)
			fresh = false
		}
		return
	}
	for _, p := range places {
		d.weightGradPlain(dw, p.DY, p.X, p.Groups)
	}
}

// weightGradPlain is WeightGrad by mma.sync.
func (d *Ops) weightGradPlain(dw, dy, x kernels.Tensor, g *kernels.Groups) {
	if g.Interleaved {
		d.weightGradInterleaved(dw, dy, x, g)
		return
	}
	launchWeightGrad(d.Context, weightGradVariant(dy, x), [3]int{driver.Blocks(dw.Cols, matmulTile),
		driver.Blocks(dw.Rows, matmulTile), g.Count}, matmulThreads, matmulShared, dw, dy, x, dy.Stride, x.Stride,
		g.Offsets, g.Segments, dw.Rows, dw.Cols, 1, driver.Flag(g.Chain), driver.Flag(g.Fresh), 0, 0)
}

// weightGradInterleaved is WeightGrad by mma.sync of interleaved groups: a block for each, or one for all where they
// share a weight.
func (d *Ops) weightGradInterleaved(dw, dy, x kernels.Tensor, g *kernels.Groups) {
	side, sharing := g.Count, 1
	if dw.Groups == 1 {
		side, sharing = 1, g.Count
	}
	launchWeightGrad(d.Context, weightGradVariant(dy, x), [3]int{driver.Blocks(dw.Cols, matmulTile),
		driver.Blocks(dw.Rows, matmulTile), side}, matmulThreads, matmulShared, dw, dy, x, g.Count*dy.Stride,
		g.Count*x.Stride, g.Offsets, g.Segments, dw.Rows, dw.Cols, sharing, driver.Flag(g.Chain),
		driver.Flag(g.Fresh), dy.Stride, x.Stride)
}

func weightGradVariant(dy, x kernels.Tensor) string {
	if driver.Aligned16(dy) && driver.Aligned16(x) {
		return "_vector"
	}
	return "_any"
}

func groupCount(g *kernels.Groups) int {
	if g == nil {
		return 1
	}
	return g.Count
}
