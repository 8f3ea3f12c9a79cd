//go:build cuda

package gemm

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// tiling is a variant of the kernels in matmul_wgmma.cu: a block's tile and its ring. All give the same bits.
type tiling struct {
	name          string
	columns, rows int // of out in a tile, at most
	height        int // rows of a tile
	stages        int
	blocks        int // on a multiprocessor
}

var (
	tilingWide   = tiling{"_wide", 128, 256, 256, 4, 1}
	tilingSquare = tiling{"_square", 128, 128, 128, 6, 1}
	tilingFew    = tiling{"_few", 64, 64, 64, 6, 2}
	// alone on its multiprocessor, with as much of the weights on the way as it holds
	tilingDeep = tiling{"_deep", 64, 64, 64, 13, 2}
	tilingTall = tiling{"_tall", 64, 128, 128, 9, 2} // the same
)

// of is the variant with tiles of fewer rows.
func (s tiling) of(height int) tiling {
	s.height = height
	return s
}

func (s tiling) String() string {
	if s.height < s.rows {
		return fmt.Sprint(s.name, s.height)
	}
	return s.name
}

// productTilings are all that tilingFor may choose.
var productTilings = []tiling{tilingWide, tilingSquare, tilingSquare.of(64), tilingSquare.of(96), tilingFew, tilingDeep,
	tilingDeep.of(8), tilingDeep.of(16), tilingDeep.of(32), tilingTall}

// ProductPaths are the values of [driver.Context.Path] that force a kernel of matmul_wgmma.cu, one for each kernel.
var ProductPaths = []string{tilingWide.name, tilingSquare.name, tilingFew.name, tilingDeep.name, tilingTall.name}

// box is how many rows of X a copy brings: few copies, which take time to start, but not many rows beyond a group's
// end; a tile is whole copies.
func (s tiling) box(groups, rows int) int {
	most := s.height
	if groups > 1 {
		most /= 2
	}
	box := 8
	for box < most && s.height%(2*box) == 0 && box < driver.Blocks(rows, groups) {
		box *= 2
	}
	return box
}

// shared is the bytes of the ring, and what aligning it may cost.
func (s tiling) shared() int { return s.stages*(s.columns+s.rows)*64*2 + 1024 }

// threads is wgmma_ring.cuh's.
func (s tiling) threads() int {
	if s.blocks == 1 {
		return s.columns*2 + 128
	}
	return s.columns*2 + 64
}

// tiles is how many tiles cover a product, groups taken to be of one size.
func (s tiling) tiles(groups, rows, columns int) int {
	return groups * driver.Blocks(driver.Blocks(rows, groups), s.height) * driver.Blocks(columns, s.columns)
}

// grid is as many blocks as the card holds, or as there may be tiles, groups of any size.
func (s tiling) grid(processors, groups, rows, columns int) [3]int {
	most := (groups + rows/s.height) * driver.Blocks(columns, s.columns)
	if groups == 1 {
		most = s.tiles(1, rows, columns)
	}
	return [3]int{min(most, s.blocks*processors), 1, 1}
}

// tilingFor is the smallest tile that leaves each multiprocessor at most one: what a chain waits for is its own steps,
// and fewer rows make them shorter. Where all leave more, few rows want the weights to arrive in small pieces, and many
// want large tiles: rather one of 256 rows that is not full than two of 128. It reads shapes alone, and how many
// multiprocessors are busy.
func (d *Ops) tilingFor(groups, rows, columns int) tiling {
	if s, ok := d.forced(productTilings...); ok {
		return s
	}
	small := []tiling{tilingDeep.of(8), tilingDeep.of(16), tilingDeep.of(32), tilingDeep, tilingTall}
	if groups == 1 && rows > tilingFew.rows {
		small = append(small, tilingSquare.of(64), tilingSquare.of(96))
	}
	for _, s := range small {
		if s.tiles(groups, rows, columns) <= d.Processors-d.busy {
			return s
		}
	}
	switch average := rows / groups; {
	case average <= 48:
		return tilingFew
	case average >= 112 && tilingWide.tiles(groups, rows, columns) >= d.Processors:
		return tilingWide
	}
	return tilingSquare
}

// forced is the variant that a test asks for.
func (d *Ops) forced(variants ...tiling) (tiling, bool) {
	if d.Path == "" {
		return tiling{}, false
	}
	for _, s := range variants {
		if s.String() == d.Path {
			return s, true
		}
	}
	return tiling{}, false
}

// HasWgmma reports whether the card has the kernels by wgmma.
func HasWgmma(c *driver.Context) bool { return c.Has(kernelWeightGradWide) }

// native tells whether the kernels for Hopper are there and can take the operands.
func (d *Ops) native(groups int, operands ...kernels.Tensor) bool {
	if !HasWgmma(d.Context) || groups > productMaxGroups || d.Path == "portable" {
		return false
	}
	for _, t := range operands {
		if !driver.Aligned16(t) || t.Rows == 0 || t.Cols == 0 {
			return false
		}
	}
	return true
}

// productNative is MatMul ("nt") or MatMulT ("nn") by wgmma.
func (d *Ops) productNative(layout string, s tiling, w window, out kernels.Tensor, scale float32, g *kernels.Groups) {
	columns := w.to - w.from
	var offsets cu.DevicePtr
	// rows of a group without offsets; from one to the next
	groups, segments, rows, pitch := groupCount(g), 1, out.Rows, out.Stride
	switch {
	case g != nil && g.Interleaved:
		rows, pitch = out.Rows/groups, out.Stride*groups
	case g != nil:
		offsets, segments = driver.Address(g.Offsets), g.Segments
	}
	terms := d.termsOf(layout, s, w, out, g)
	terms.scale = scale
	d.begin()
	launchProductWgmma(d.Context, layout+s.name+driver.Suffix(out), s.grid(d.Processors, groups, out.Rows, columns),
		s.threads(), s.shared(), &terms, out, pitch, offsets, groups, segments, rows, w.to)
}

// termsOf describes the terms of a window, but for weights in codes.
func (d *Ops) termsOf(layout string, s tiling, w window, out kernels.Tensor, g *kernels.Groups) (p productTerms) {
	interleaved, box, boxW := g != nil && g.Interleaved, s.box(groupCount(g), out.Rows), 64
	if layout == "nt" {
		boxW = s.columns
	}
	for i, t := range w.terms {
		from, to := t.Columns(out.Cols)
		if t.XQ != nil {
			p.x[i] = d.BoxesOf(t.XQ.Codes, 128, box, 128)
		} else {
			p.x[i] = d.GroupBoxes(t.X, g, box)
		}
		if !inCodes(t) {
			p.w[i] = d.Boxes(t.W, boxW)
		}
		p.k[i], p.from[i], p.to[i] = int32(t.X.Cols), int32(from), int32(to)
		if interleaved && t.W.Groups == 1 {
			p.shared[i] = 1
		}
	}
	p.count, p.begin, p.height, p.box = int32(len(w.terms)), int32(w.from), int32(s.height), int32(box)
	if interleaved {
		p.headStride = int32(out.Stride)
	}
	return p
}
